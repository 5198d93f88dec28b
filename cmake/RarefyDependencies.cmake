# Finds every library that Rarefy links (docs/dependencies.md).
find_package(PkgConfig REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(dnnl REQUIRED)
pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)

add_library(rarefy_dependencies INTERFACE)
target_link_libraries(rarefy_dependencies INTERFACE
  fmt::fmt spdlog::spdlog nlohmann_json::nlohmann_json DNNL::dnnl PkgConfig::HWY PkgConfig::PCRE2 PkgConfig::UTF8PROC)
add_library(rarefy_app_dependencies INTERFACE)
target_link_libraries(rarefy_app_dependencies INTERFACE CLI11::CLI11)
