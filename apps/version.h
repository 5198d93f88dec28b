// What this build is: `rarefy --version`.
#pragma once
#include <string>

namespace rarefy::apps {

std::string version_text();

}  // namespace rarefy::apps
