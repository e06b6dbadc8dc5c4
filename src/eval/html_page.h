// What the reports' pages share: one file that needs nothing else, light or dark as the reader's system is.
#pragma once
#include <string>
#include <string_view>

namespace narrows {

// The beginning of a page, up to its body. `light` and `dark` set custom properties, "--name: #rgb;", for
// colours that `style` uses; an SvgPlot's series takes its own from --c.
std::string page_head(std::string_view title, std::string_view light, std::string_view dark,
                      std::string_view style);
inline constexpr std::string_view kPageEnd = "</body>\n</html>\n";

}  // namespace narrows
