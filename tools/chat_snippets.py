"""Small templates that exercise every feature of the interpreter, for make_chat_goldens.py."""

VARIABLES = {
    "s": "Hello World", "blank": "  \t padded\n ", "empty": "", "u": "Grüße 中文 🙂", "n": 7, "neg": -3, "big": 123456789,
    "f": 2.5, "zero": 0, "t": True, "no": False, "nil": None, "l": [3, 1, 2], "ls": ["b", "A", "c", "a"], "e": [],
    "d": {"b": 1, "a": "x", "items": "own", "C": [1, 2]}, "nested": {"list": [{"x": 1}, {"x": 2}], "deep": {"er": "found"}},
    "people": [{"name": "Ann", "age": 30, "on": True}, {"name": "bob", "age": 25, "on": False}, {"name": "Cy", "age": 30}],
    "lines": "one\ntwo\n\nthree", "html": "<a href=\"x\">'&'</a>",
}

# Each is printed: {{ … }}.
EXPRESSIONS = r"""
1 + 2 * 3
(1 + 2) * 3
2 ** 3
2 ** 3 ** 2
-2 ** 2
2 ** -1
7 // 2
-7 // 2
7 % 3
-7 % 3
7 % -3
7 / 2
8 / 2
7.5 // 2
-7.5 // 2
7.5 % 2
-7.5 % 2
1 / 0
1 // 0
1 % 0
1.0 / 0
1.5 + 1
10000000000000000.0
1e16
1e15
1.5e-7
0.0001
0.00001
1e100
1E3
1_000
1_0.5
0x1F
0b101
0o17
007
1.
.5
- 5
+5
-f
not 1
not not 1
not x
- s
true + true
True
False
None
true and false
1 and 2
0 and 2
0 or 5
none or 'x'
'' or []
1 == 1.0
1 == true
'1' == 1
1 != 2
1 < 2 < 3
1 < 3 < 2
1 < 2 > 0
'a' < 'b'
'a' < 1
[1, 2] < [1, 3]
[1, 2] == [1, 2]
[1, 2] == (1, 2)
(1, 2) < (1, 2, 3)
{'a': 1} == {'a': 1.0}
{'a': 1, 'b': 2} == {'b': 2, 'a': 1}
{'a': 1} < {'a': 2}
none == none
none < 1
x == y
x == none
x < 1
2 in [1, 2]
2 not in [1, 2]
'a' in 'cat'
'' in ''
1 in 'abc'
'b' in d
'z' in d
1 in 5
1 in x
1 in none
not 1 in [2]
'a' ~ 1 ~ none ~ true ~ 1.5 ~ x
'a' ~ 1 + 2
1 ~ 2 * 3
'a' + 'b'
'a' + 1
1 + 'a'
'a' * 3
3 * 'ab'
'a' * -1
[1] + [2]
[1] * 2
(1,) + (2,)
[1] + (2,)
x + 1
1 + x
'a' + x
none + 1
{} + {}
'a' 'b' "c"
'a' if true
'a' if false
'a' if false else 'b'
'a' if 0 else 'b' if 0 else 'c'
1 if x else 2
[1, 'a', none, true, 1.5, [2], (3,), {'k': 'v'}]
(1,)
()
(1, 2)
1, 2
[]
{}
[1, 2,]
{'a': 1,}
{1: 'a', none: 'b', 1.5: 'c', (1, 2): 'd'}
{[1]: 2}
{1: 'a', true: 'b', 1.0: 'c'}
{'a': 1, 'a': 2}
'it\'s'
"say \"x\""
['it\'s', "say \"x\"", 'both \' and "']
['\n\t\r\\', 'é', '\x00', '\x7f', '\u00a0', '\u2028']
'\x41\u00e9\101\z\a'
'\U0001F642'
'\ud800'
'tab\there'
s
u
d
nested
people
l
f
big
x
x.y
x['y']
x()
s()
none.x
none['x']
d.a
d['a']
d.zz
d.zz.y
d['zz'] is defined
d.items
d['items']
d.items()
d.items() | list
d.keys()
d.values()
d.keys() | list
d.keys()[0]
d.items() | length
d.get('a')
d.get('zz')
d.get('zz', 5)
d.get('zz', default=5)
d.get()
d['get']('a')
d.copy()
d.pop('a')
d.update({'q': 1})
d.pop is defined
d.setdefault('a', 1)
d.clear()
nested.list[0].x
nested.list[-1]['x']
nested['deep'].er
l[0]
l[-1]
l[5]
l[5] is defined
l['0']
l[0.5]
l[true]
l.0
l[1:]
l[:-1]
l[::-1]
l[::2]
l[5:1]
l[-2:]
l[:100]
l[none:2]
l[::0]
l['a':]
(1, 2, 3)[1:]
range(10)[2:5] | list
range(0, 10, 3)[::-1] | join(',')
range(3)
range(1, 4)
range(0, 10, 3)
range(5, 0, -2)
range(5, 0, -2) | list
range(0)
range('a')
range(1, 2, 0)
range(3)[1]
range(1000000)
range(3) | length
s[0]
s[-1]
s[100]
s[1:4]
s[:-1]
s[::-1]
s[::2]
s[-3:]
u[1:4]
u[-1]
u[::-1]
u | length
s['x']
s.x
l.append(4)
l.extend([1])
l.append is defined
l.count(1)
l.index(2)
l.index(9)
l.copy()
l.sort()
l.__class__
d.__class__
s.__len__
s.upper()
s.lower()
s.title()
s.capitalize()
s.swapcasex()
u.upper()
'ÀÉÎ'.lower()
"they're bill's friends".title()
'straße'.upper()
blank.strip()
blank.lstrip()
blank.rstrip()
'xxaxx'.strip('x')
'xyaxy'.strip('xy')
'xyaxy'.lstrip('xy')
'xyaxy'.rstrip('yx')
'éaé'.strip('é')
' a '.strip(none)
'a'.strip(1)
'a b  c'.split()
' a b  c '.split()
'a b  c '.split(none, 1)
'a,b,c'.split(',')
'a,b,c'.split(',', 1)
'a,b,c'.split(sep=',', maxsplit=1)
'a,b,c'.split('')
''.split()
''.split(',')
'a,b,c'.rsplit(',', 1)
'  a b  c '.rsplit(none, 1)
'a b c'.rsplit()
'<think>x</think>y'.split('</think>')[-1]
lines.splitlines()
lines.splitlines(true)
'a\r\nb\rc'.splitlines()
s.startswith('Hell')
s.startswith(('x', 'H'))
s.startswith('World', 6)
s.startswith('')
s.startswith(1)
s.endswith('ld')
s.endswith('x')
s.endswith(('x', 'd'))
s.find('o')
s.find('o', 5)
s.find('zz')
s.rfind('o')
s.index('W')
s.index('zz')
u.find('中')
s.count('l')
s.count('')
s.replace('l', 'L')
s.replace('l', 'L', 1)
s.replace('', '-')
s.replace('zz', 'y')
'aaa'.replace('aa', 'b')
', '.join(['a', 'b'])
', '.join('abc')
', '.join([1])
', '.join(x)
'a'.join(d)
'a-b-c'.partition('-')
'a-b-c'.rpartition('-')
'abc'.partition('-')
'abc'.removeprefix('a')
'abc'.removesuffix('c')
'abc'.removeprefix('z')
'abc'.center(8) ~ '|'
'abc'.center(9, '*')
'ab'.center(7, '*')
'abc'.ljust(6, '.')
'abc'.rjust(6)
'7'.zfill(3)
'-7'.zfill(4)
'abc'.isalpha()
'ab1'.isalpha()
'ab1'.isalnum()
'12'.isdigit()
''.isdigit()
' '.isspace()
'AB1'.isupper()
'ab'.islower()
'{} {}'.format(1, 'a')
'{0}{1}{0}'.format('a', 'b')
'{a} {b[k]} {c.b}'.format(a=1, b={'k': 2}, c={'b': 3})
'{:>5}|{:<5}|{:^5}|{:*^7}'.format('a', 'b', 'c', 'd')
'{:5}|{:05d}|{:+d}|{:,}'.format(1, 42, 7, 1234567)
'{:.2f} {:8.3f} {:e} {:.1%}'.format(3.14159, 2.5, 12345.678, 0.256)
'{:x} {:X} {:#x} {:b} {:o}'.format(255, 255, 255, 5, 8)
'{!r} {!s}'.format('a', 'b')
'{{}} {}'.format(1)
'{:{}}'.format('a', 5) ~ '|'
'{'.format()
'{}'.format()
'{} {0}'.format(1)
'{:d}'.format('a')
'{:.2}'.format('abc')
'{}'.format(none)
'{:5}'.format(none)
'{}'.format([1, 'a'])
'{:g} {:g}'.format(1.5, 1e10)
'%s and %s' % ('a', 1)
'%d%%' % 5
'%5.1f|%-5s|%05d' % (2.25, 'ab', 42)
'%(a)s' % {'a': 1}
'%s' % 'x'
'%s %s' % ('x',)
'%s' % ('x', 'y')
'%d' % 'x'
'%r' % 'x'
'%x' % 255
'%s' % none
'%s' % [1]
'%q' % 1
'abc' % 1
s | upper
s | lower
s | title
s | capitalize
'hello-world (foo) [bar] o\'neil' | title
'HELLO' | capitalize
blank | trim
'xxaxx' | trim('x')
5 | upper
none | upper
x | upper
s | length
l | length
d | length
x | length
5 | length
none | length
s | count
s | first
s | last
l | first
l | last
e | first
e | last
e | first is defined
d | first
x | first
5 | first
l | join(', ')
l | join
ls | join('-')
people | join(',', attribute='name')
[1, none, true, x] | join('|')
5 | join
x | join
s | join('.')
x | default('dd')
x | default
x | d(5)
none | default('dd')
none | default('dd', true)
'' | default('dd', true)
'' | default('dd', boolean=true)
'v' | default('dd')
x.y | default('dd')
d.zz | default('dd')
s | replace('l', 'L')
s | replace('l', 'L', 1)
5 | replace('5', 6)
x | replace('a', 'b')
l | list
s | list
d | list
x | list
5 | list
(1, 2) | list
l | string
none | string
x | string
1.0 | string
5 | string | length
'5' | int
'5.7' | int
'x' | int
'x' | int(9)
'x' | int(default=9)
5.9 | int
-5.9 | int
none | int
x | int
'0x1f' | int(0, 16)
'ff' | int(base=16)
' 42 ' | int
'1_000' | int
true | int
'1e3' | int
[] | int
'5.5' | float
'x' | float
'x' | float(1.5)
5 | float
none | float
'inf' | float
'1e400' | float
' 2.5 ' | float
-5 | abs
-5.5 | abs
'a' | abs
2.567 | round
2.567 | round(1)
2.5 | round
3.5 | round
2.567 | round(2, 'floor')
2.561 | round(2, 'ceil')
5 | round
5 | round(2, 'ceil')
1234 | round(-2)
2.675 | round(2)
0.5 | round
'a' | round
2.5 | round(0, 'down')
s | reverse
l | reverse
l | reverse | list
5 | reverse
l | sort
l | sort(reverse=true)
ls | sort
ls | sort(case_sensitive=true)
people | sort(attribute='age') | map(attribute='name') | list
people | sort(attribute='age,name', reverse=true) | map(attribute='name') | list
[1, 'a'] | sort
[none, 1] | sort
d | dictsort
d | dictsort(true)
{'b': 2, 'a': 3} | dictsort(by='value')
{'b': 2, 'a': 3} | dictsort(reverse=true)
d | dictsort(by='foo')
l | dictsort
d | items | list
x | items | list
l | items | list
l | unique | list
['a', 'A', 'b'] | unique | list
['a', 'A', 'b'] | unique(true) | list
[[1], [1]] | unique | list
l | min
l | max
ls | min
ls | max
e | min
people | max(attribute='age')
[1, 'a'] | max
l | sum
people | sum(attribute='age')
l | sum(start=10)
ls | sum
l | map('string') | list
ls | map('upper') | join(',')
l | map('abs') | sum
people | map(attribute='name') | list
people | map(attribute='zz') | list
people | map(attribute='zz', default='-') | list
people | map(attribute='name') | map('length') | list
ls | map('replace', 'a', 'z') | list
ls | map('nofilter') | list
ls | map | list
none | map('upper') | list
none | select | list
0 | selectattr('x') | list
5 | select | list
none | sort
x | map('upper') | list
l | select('odd') | list
l | select('greaterthan', 1) | list
l | select('>', 1) | list
l | reject('odd') | list
[0, 1, '', 'a', none] | select | list
[0, 1, '', 'a', none] | reject | list
[1, 'a', none] | select('string') | list
l | select('notest') | list
l | select('in', [1, 2]) | list
people | selectattr('on') | map(attribute='name') | list
people | selectattr('age', 'equalto', 30) | map(attribute='name') | list
people | selectattr('age', '==', 30) | list | length
people | selectattr('on', 'defined') | list | length
people | rejectattr('on') | map(attribute='name') | list
people | rejectattr('age', 'gt', 26) | map(attribute='name') | list
people | selectattr | list
nested.list | selectattr('x', 'eq', 2) | first
people | groupby('age') | list | length
people | groupby('age') | map('first') | list
l | map('string')  | length
l | batch(2) | list
l | batch(2, 0) | list
lines | indent
lines | indent(2)
lines | indent(2, true)
lines | indent(2, blank=true)
lines | indent('> ', first=true)
'' | indent(2, true)
lines | wordcount
s | wordcount
'a_b, c-d' | wordcount
html | escape
html | e
html | e | e
html | safe
(html | safe) + '<'
'<' + (html | safe)
(html | safe) ~ '<'
(html | safe) | upper
'<' | e | length
'%s-%s' | format('a', 1)
'%(x)s' | format(x=3)
'%s' | format
s | center(21) ~ '|'
l | tojson
d | tojson
people | tojson
u | tojson
html | tojson
'a"b\\c\n\t\x01/' | tojson
none | tojson
true | tojson
1.5 | tojson
1.0 | tojson
1e16 | tojson
(1, 2) | tojson
{} | tojson
[] | tojson
{1: 2, none: 3, true: 4, 1.5: 5} | tojson
x | tojson
[x] | tojson
d | tojson(indent=2)
nested | tojson(indent=4)
{'a': [], 'b': {}} | tojson(indent=2)
l | tojson(indent=0)
l | tojson(separators=(',', ':'))
d | tojson(separators=(',', ':'), indent=1)
d | tojson(sort_keys=true)
u | tojson(ensure_ascii=true)
d.items() | tojson
range(2) | tojson
(l | map('string')) | tojson
d | tojson | safe
{(1, 2): 3} | tojson
x is defined
s is defined
x is undefined
x.y is defined
none is none
x is none
s is string
5 is string
n is number
t is number
f is number
'5' is number
n is integer
t is integer
f is float
t is boolean
n is boolean
t is true
1 is true
no is false
0 is false
d is mapping
l is mapping
l is sequence
s is sequence
d is sequence
5 is sequence
x is sequence
none is sequence
(1,) is sequence
l | map('string') is sequence
l is iterable
s is iterable
5 is iterable
x is iterable
none is iterable
range is callable
s is callable
s.upper is callable
3 is odd
4 is even
'a' is odd
9 is divisibleby(3)
9 is divisibleby 3
9 is divisibleby 0
5 is eq 5
5 is eq(5)
5 is equalto 6
5 is ne 6
5 is lt 6
5 is gt 6
5 is le 5
5 is ge 6
5 is lessthan 6
5 is in [5, 6]
5 is not in [5, 6]
5 is sameas 5
none is sameas none
'ab' is lower
'AB' is upper
'abs' is filter
'zz' is filter
'odd' is test
html | safe is escaped
5 is not string
5 is not none
not 5 is none
5 is none or 1
x is not defined and 1
5 is nosuchtest
5 is odd is even
s is defined and s | length > 3
1 + 2 | string
-1 | abs
-5 | string
(1 + 2) | string ~ 'x'
l | length + 1
'a' in s | lower
d.a | upper ~ '!'
d.C[0]
d.C | first
range(3) | map('string') | join
dict(a=1, b=2)
dict([('a', 1)])
dict({'a': 1}, b=2)
dict([1])
dict(1)
namespace(a=1).a
namespace({'a': 1}).a
namespace(a=1).b
namespace(a=1)['a']
namespace(_a=1)
range(*[1, 4]) | list
dict(**{'a': 1})
s.replace(*['l', 'L'])
s.upper(1)
s.replace('a')
s | replace('a')
s | upper(1)
s | nofilter
nofunction()
raise_exception('no')
raise_exception()
1 if
1 +
(1
[1
{1}
{1: 2
a b
'abc
1 ? 2
a.
a[
a[]
| upper
s |
s | upper(
5 is
5 is not
{% if %}
lipsumx()
[1, 2][0] + [3][0]
[[1, 2], [3]][0][1]
{'a': {'b': [10, 20]}}.a.b[1]
{'a': 1}['a']
('a', 'b')[1]
'abc'[1]
"a" ~ "b" | upper
("a" ~ "b") | upper
1 < 2 and 2 < 3 or x
not (1 and 0)
1 if 2 > 1 and not no else 3
s[0] | lower ~ s[1:]
(s | upper)[0]
(s.split(' '))[1]
s.split(' ')[0].lower()
9223372036854775807
-9223372036854775807 - 1
1e308 * 10
(1e308 * 10) | string
1e308 * 10 - 1e308 * 10
10 | float
3 | string + 'a'
l == [3, 1, 2]
l | sort == [1, 2, 3]
t == 1
[1, 2] | length == 2
d == d
loop
loop.index
varargs
caller()
""".strip().split("\n")

STATEMENTS = [
    "{% if t %}a{% endif %}", "{% if no %}a{% else %}b{% endif %}", "{% if no %}a{% elif t %}b{% else %}c{% endif %}",
    "{% if no %}a{% elif no %}b{% else %}c{% endif %}", "{% if x %}a{% else %}b{% endif %}", "{% if no %}{% endif %}",
    "{% if e %}a{% endif %}{% if '' %}b{% endif %}{% if 0.0 %}c{% endif %}{% if {} %}d{% endif %}{% if [0] %}e{% endif %}",
    "{% for i in l %}{{ i }},{% endfor %}", "{% for i in e %}x{% else %}none{% endfor %}", "{% for i in x %}a{% else %}b{% endfor %}",
    "{% for i in none %}a{% endfor %}", "{% for i in 5 %}a{% endfor %}", "{% for c in s %}{{ c }}.{% endfor %}",
    "{% for k in d %}{{ k }} {% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in d | dictsort %}{{ k }}={{ v }};{% endfor %}", "{% for a, b in [(1, 2), [3, 4]] %}{{ a }}{{ b }}{% endfor %}",
    "{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}", "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in ['xy'] %}{{ a }}{{ b }}{% endfor %}", "{% for a, b in [1] %}{% endfor %}", "{% for (a, b) in [(1, 2)] %}{{ a }}{% endfor %}",
    "{% for i in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}",
    "{% for i in l %}{{ loop.previtem }}-{{ loop.nextitem }} {% endfor %}", "{% for i in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}",
    "{% for i in l %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for i in l %}{{ loop.cycle() }}{% endfor %}", "{% for i in [1, 1, 2] %}{{ loop.changed(i) }}{% endfor %}",
    "{% for i in l %}{{ loop.zzz }}{% endfor %}", "{% for i in l %}{{ loop.zzz.y }}{% endfor %}", "{% for i in l %}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}",
    "{% for i in range(6) if i is even %}{{ i }}:{{ loop.index }}/{{ loop.length }}{{ loop.last }} {% endfor %}",
    "{% for i in l if i > 5 %}a{% else %}none{% endfor %}", "{% for i in l | map('string') %}{{ i }}{{ loop.last }}{{ loop.length }}{% endfor %}",
    "{% for i in l if loop.first %}{{ i }}{% endfor %}",
    "{% for i in l %}{% for j in [1, 2] %}{{ i }}{{ j }}{{ loop.index }} {% endfor %}{{ loop.index }};{% endfor %}",
    "{% for i in l %}{% set outer = loop %}{% for j in [1] %}{{ outer.index }}{% endfor %}{% endfor %}",
    "{% for i in l %}{% if i == 1 %}{% break %}{% endif %}{{ i }}{% endfor %}", "{% for i in l %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in l %}{% break %}{% else %}x{% endfor %}", "{% break %}", "{% continue %}", "{% for i in l %}{% for j in l %}{% break %}{% endfor %}{{ i }}{% endfor %}",
    "{% for i in l %}{% endfor %}{{ i }}", "{% set i = 9 %}{% for i in l %}{% endfor %}{{ i }}", "{% for loop in l %}{% endfor %}", "{% for i.x in l %}{% endfor %}",
    "{% for i in l %}{{ i }}{% set i = 5 %}{{ i }} {% endfor %}", "{% for i in 1, 2 %}{{ i }}{% endfor %}", "{% for i in (1, 2) if true else [] %}{% endfor %}",
    "{% for i in range(3) | reverse %}{{ i }}{% endfor %}", "{% for i in [1, 2, 3][1:] %}{{ i }}{% endfor %}", "{% for m in people[::-1] %}{{ m.name }}{% endfor %}",
    "{% set a = 1 %}{{ a }}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a = 1, 2 %}{{ a }}", "{% set (a, b) = [1, 2] %}{{ b }}", "{% set a, b = 1 %}", "{% set a, b = [1] %}",
    "{% set a = 1 %}{% for i in l %}{% set a = i %}{{ a }}{% endfor %}{{ a }}", "{% set a = 0 %}{% for i in l %}{% set a = a + i %}{{ a }} {% endfor %}{{ a }}",
    "{% if t %}{% set a = 5 %}{% endif %}{{ a }}", "{% for i in l %}{{ q }}{% set q = i %}{% endfor %}", "{% for i in l %}{% if i == 1 %}{% set q = i %}{% endif %}{{ q }}.{% endfor %}",
    "{% set ns = namespace(a=0) %}{% for i in l %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}", "{% set ns = namespace() %}{% set ns.x = 1 %}{% set ns.y = ns.x + 1 %}{{ ns.y }}{{ ns.z }}",
    "{% set d.a = 1 %}", "{% set zz.a = 1 %}", "{% set ns = namespace(a=1) %}{% set ns.a, b = 2, 3 %}{{ ns.a }}{{ b }}", "{% set ns = namespace() %}{% set ns._a = 1 %}",
    "{% set ns = namespace(a=1) %}{{ ns is mapping }}{{ ns is defined }}{{ ns.zz is defined }}", "{% set ns = namespace(found=false) %}{% for i in l if not ns.found %}{{ i }}{% set ns.found = true %}{% endfor %}",
    "{% set a %}block {{ s }}{% endset %}{{ a | upper }}", "{% set a | upper %}block{% endset %}{{ a }}", "{% set a | upper | replace('B', 'X') %}block{% endset %}{{ a }}",
    "{% set a %}{% set b = 1 %}{% endset %}{{ b }}", "{% set a %}{% endset %}[{{ a }}]", "{% set a %}<b>{% endset %}{{ a is string }}", "{% set true = 1 %}", "{% set 'a' = 1 %}", "{% set a.b.c = 1 %}", "{% set %}", "{% set a = %}",
    "{% for i in l %}{% set a %}{% break %}{% endset %}{% endfor %}ok", "{% set ns = namespace() %}{% set ns.t %}text{% endset %}{{ ns.t }}",
    "{% macro f(a, b=2) %}{{ a }}-{{ b }}{% endmacro %}{{ f(1) }} {{ f(1, 3) }} {{ f(b=4, a=5) }} {{ f() }}", "{% macro f(a) %}{{ a is defined }}{% endmacro %}{{ f() }}{{ f(none) }}",
    "{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "{% macro f(a) %}{% endmacro %}{{ f(b=2) }}", "{% macro f(a) %}{% endmacro %}{{ f(1, a=2) }}", "{% macro f(a=1, b) %}{% endmacro %}",
    "{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, x=3) }}", "{% macro f(a) %}{{ a }}{{ varargs }}{% endmacro %}{{ f(1, 2) }}", "{% macro f(a) %}{{ a }}{{ kwargs }}{% endmacro %}{{ f(1, q=2) }}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}", "{% macro f(a, b=a) %}{{ b }}{% endmacro %}{{ f(7) }}", "{% set q = 1 %}{% macro f() %}{{ q }}{% endmacro %}{% set q = 2 %}{{ f() }}",
    "{% macro f() %}{% set q = 5 %}{{ q }}{% endmacro %}{{ f() }}{{ q }}", "{% macro f() %}{{ s }}{% endmacro %}{{ f() | upper }}", "{% macro f() %}x{% endmacro %}{{ f is callable }}{{ f.name }}{{ f() is string }}",
    "{% for i in l %}{% macro f() %}{{ i }}{% endmacro %}{{ f() }}{% endfor %}", "{% macro f() %}{{ i }}{% endmacro %}{% for i in l %}{{ f() }}{% endfor %}", "{% macro f() %}{{ loop }}{% endmacro %}{% for i in l %}{{ f() }}{% endfor %}",
    "{% macro f(x) %}{{ x }}{% endmacro %}{% macro g(x) %}[{{ f(x) }}]{% endmacro %}{{ g(1) }}{{ g('a') }}", "{{ f() }}{% macro f() %}x{% endmacro %}", "{% macro f() %}a\n  b{% endmacro %}{{ f() }}",
    "{% macro f() %}({{ caller() }}){% endmacro %}{% call f() %}inside {{ s }}{% endcall %}", "{% macro f() %}{{ caller(1, 2) }}{% endmacro %}{% call(a, b) f() %}{{ a }}{{ b }}{% endcall %}",
    "{% macro f(x) %}{{ x }}{{ caller() }}{% endmacro %}{% call f(3) %}c{% endcall %}", "{% macro f() %}a{% endmacro %}{% call f() %}c{% endcall %}", "{% macro f() %}{{ caller is defined }}{% endmacro %}{{ f() }}", "{% call s %}{% endcall %}",
    "{% macro f() %}{{ caller() }}{% endmacro %}{% for i in l %}{% call f() %}{{ i }}{% endcall %}{% endfor %}",
    "{% filter upper %}abc {{ s }}{% endfilter %}", "{% filter replace('a', 'b') | upper %}aac{% endfilter %}", "{% filter nofilter %}{% endfilter %}", "{% filter upper %}{% set q = 1 %}{% endfilter %}{{ q }}",
    "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% with %}{% set a = 1 %}{{ a }}{% endwith %}{{ a }}", "{% set a = 5 %}{% with a = 1, b = a %}{{ b }}{% endwith %}", "{% print 1, 'a' %}",
    "{% generation %}a{{ s }}{% set q = 1 %}{% endgeneration %}{{ q }}", "{% generation %}x", "{% raw %}{{ not }} {% if %}{% endraw %}", "{%- raw -%}  a  {%- endraw -%}  b", "{% raw %}x", "a {# comment {{ x }} #} b", "{# open", "{#- c -#} a", "a {#- c #} b", "a\n  {# c #}\nb",
    "{% if t -%}  a  {%- endif %}", "a  {{- 1 -}}  b", "a\n\n{%- if t %}\nb\n{%- endif -%}\n\nc", "  {% if t %}\n  a\n  {% endif %}\nb", "  {%+ if t %}\n  a\n  {%+ endif %}\nb", "{% if t +%}\na{% endif %}", "{% if t %}\n\na{% endif %}",
    "x  {% if t %}a{% endif %}", "\t{% if t %}\ta{% endif %}", "  {{ 1 }}\n  {{ 2 }}\n", "  {#+ c #}a", "{{ 1 }}\n", "{{ 1 }}\n\n", "\n{{ 1 }}", "{{+ 1 }}", "{{ 1 +}}", "a\r\nb\rc\n", "{% if t %}\r\na{% endif %}",
    "{% set a = 1 -%}\n  b", "{%- set a = 1 %}\n{%- set b = 2 %}\n{{- a }}", "a {%- if t %} b{% endif %}\u00a0{%- if t %}c{% endif %}", "  {% raw %}  a{% endraw %}", "x\n  {% raw %}\n  a\n  {% endraw %}\n b",
    "{{ '%}' }}{{ '}}' }}", "{{ {'a': {'b': 1}}['a'] }}", "{{ {'a': {'b': 1}} }}", "{{{'a': 1}}}", "{{ '{{' }}", "{{ \"{%\" }}", "{{ 'a\nb' }}", "{ {x} }", "{", "{{", "{%", "{#", "{% raw %}", "{% for i in l %}{% continue %}{% else %}x{% endfor %}", "{% for i in l %}{% if i == 1 %}{% break %}{% endif %}{% else %}x{% endfor %}", "}}", "%}", "{{}}", "{%%}", "{{ }}", "",
    "{% unknown %}", "{% endif %}", "{% if t %}", "{% for i in l %}", "{% if t %}{% endfor %}", "{% else %}", "{% if %}{% endif %}", "{% if t %}{% else %}{% elif t %}{% endif %}", "{% for i l %}{% endfor %}", "{% for in l %}{% endfor %}", "{% macro %}{% endmacro %}", "{% macro f %}{% endmacro %}",
    "{{ 1 }", "{% if t }", "{{ (1 }}", "{{ 1) }}", "{{ [1) }}", "{{ a b }}", "{% if t: %}a{% endif %}", "{% include 'a' %}", "{% extends 'a' %}", "{% import 'a' as b %}", "{% do l %}",
    "{{ f(a=1, 2) }}", "{{ dict(a=1, a=2) }}", "{{ x.y.z }}", "{{ x is defined and x.y }}", "{{ d.zz or 'q' }}", "{% if d.zz %}a{% endif %}", "{% if d.zz.y %}a{% endif %}", "{% if x is defined and x.y.z %}a{% else %}b{% endif %}",
    "{% set m = l | map('string') %}{{ m | join }}{{ m | join }}", "{% set m = l | select %}{% for i in m %}{{ i }}{% endfor %}{% for i in m %}{{ i }}{% else %}done{% endfor %}",
    "{% set a = 'x' %}{% set a = a ~ 'y' %}{{ a }}", "{% if 'a' in ['a'] and not 'b' in ['a'] %}y{% endif %}", "{% for i in l %}{{ i }}{{ ', ' if not loop.last }}{% endfor %}", "{% for i in l -%}\n  {{ i }}\n{%- endfor %}",
    "{{ undefined_function(1) }}", "{{ s.nosuch() }}", "{{ s.nosuch }}", "{{ d.nosuch() }}", "{{ true.x }}", "{{ none is mapping }}", "{{ (none or {}).get('a', 3) }}",
    "{% if messages is undefined %}u{% endif %}", "{% set messages = [] %}{{ messages }}", "{% set s = 'changed' %}{{ s }}", "{% if t %}{% set s = 'changed' %}{% endif %}{{ s }}", "{% for i in [1] %}{% set s = 'c' %}{% endfor %}{{ s }}",
    "{% macro f(s) %}{{ s }}{% endmacro %}{{ f('p') }}{{ s }}", "{% set f = s.upper %}{{ f() }}", "{% set up = 'upper' %}{{ s | up }}", "{{ raise_exception('bad ' ~ n) }}", "{% if no %}{{ raise_exception('x') }}{% endif %}ok",
    "{{ strftime_now('%Y') | length > 0 }}", "{{ strftime_now }}" and "{{ strftime_now is defined }}", "{%- for m in people %}\n{{- m.name }}{{ '\\n' }}\n{%- endfor %}", "{{- 'a' -}}\n\n{{- 'b' -}}", "{{ 'line1\\nline2' }}", "{{ \"a\" \"b\" }}", "{{ 1}}{{2 }}", "{{1}}{{- 2 -}}",
    "{% set content = '<think>a</think>b' %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{ content }}",
    "{% set a = {} %}{% set a = dict(a, **{'k': 1}) %}{{ a }}", "{% set a = [] %}{% for i in l %}{% set a = a + [i] %}{% endfor %}{{ a }}", "{% set ns = namespace(a=[]) %}{% for i in l %}{% set ns.a = ns.a + [i * 2] %}{% endfor %}{{ ns.a | join(',') }}",
]


def all_snippets():
    return [f"{{{{ {expression} }}}}" for expression in EXPRESSIONS] + STATEMENTS
