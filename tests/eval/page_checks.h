// What every page of a report must be.
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace narrows {

// One whole page that fetches nothing and closes what it opens, in order.
inline void expect_page(std::string page) {
  EXPECT_TRUE(page.starts_with("<!DOCTYPE html>\n"));
  EXPECT_TRUE(page.ends_with("</html>\n"));
  const std::string name_space = "xmlns=\"http://www.w3.org/2000/svg\"";
  for (std::size_t at; (at = page.find(name_space)) != std::string::npos;) page.erase(at, name_space.size());
  for (const char* outside : {"http", "src=", "href=", "url(", "@import", "<script"})
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
  EXPECT_EQ(page.find("nan"), std::string::npos);
  std::vector<std::string> open;
  for (std::size_t at = page.find("<html"); (at = page.find('<', at)) != std::string::npos; ++at) {
    const std::size_t end = page.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const bool closing = page[at + 1] == '/';
    const std::string tag =
        page.substr(at + 1 + closing, page.find_first_of(" >/", at + 1 + closing) - at - 1 - closing);
    if (closing) {
      ASSERT_FALSE(open.empty());
      ASSERT_EQ(open.back(), tag);
      open.pop_back();
    } else if (page[end - 1] != '/' && tag != "meta") {
      open.push_back(tag);
    }
  }
  EXPECT_TRUE(open.empty());
}

}  // namespace narrows
