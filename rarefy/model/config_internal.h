// What both readers of a config share: the family table and the validation.
#pragma once
#include <string>
#include <string_view>

#include "rarefy/model/config.h"

namespace rarefy::model {

/// The family whose `key` (gguf or hugging_face) is `name`. Throws Unsupported (E_CFG_ARCH) listing the known ones.
const Family& find_family(std::string_view name, std::string_view Family::*key, const std::string& file);

/// Fills head_dim and rotary where they are implied, then checks every range and shape. Throws as config.h says.
void validate(Config& config, const std::string& file);

}  // namespace rarefy::model
