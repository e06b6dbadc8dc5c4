# The Debian packages that narrows is built with; sourced by ./run and ./test.

build_packages=(g++ cmake ninja-build ccache pkg-config python3 python3-pip ca-certificates
  libfmt-dev nlohmann-json3-dev libcli11-dev libhwy-dev libpcre2-dev libutf8proc-dev libxxhash-dev libedit-dev
  libopenblas-dev liblapacke-dev)
test_packages=(libgtest-dev libgmock-dev)
# The fuzzers need clang and its runtime, which Debian names after the version.
fuzz_packages=(clang)

# Installs those of the packages that are missing.
install_packages() {
  local missing=() package
  for package in "$@"; do
    dpkg -s "$package" 2>/dev/null | grep -q '^Status: .* installed$' || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  echo "installing ${missing[*]} …" >&2
  local root=()
  [ "$(id -u)" -eq 0 ] || root=(sudo)
  "${root[@]}" apt-get update -qq
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}
