# Compile options shared by every target: warnings, sanitizers, OpenMP.
add_library(rarefy_options INTERFACE)
target_compile_options(rarefy_options INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wno-missing-field-initializers
  -fno-math-errno -ffp-contract=off)
find_package(OpenMP REQUIRED)
target_link_libraries(rarefy_options INTERFACE OpenMP::OpenMP_CXX)
if(RAREFY_SANITIZE)
  target_compile_options(rarefy_options INTERFACE -fsanitize=${RAREFY_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1)
  target_link_options(rarefy_options INTERFACE -fsanitize=${RAREFY_SANITIZE})
endif()
# Four CPU targets are enough (SSE4 as the floor, AVX2, AVX-512, AVX-512 of Ice Lake and Zen 4 on); each costs compile time.
# Sanitizers multiply the compile time of the unrolled kernels: there one target and little optimisation must do.
if(RAREFY_SANITIZE)
  target_compile_options(rarefy_options INTERFACE -O1)
  target_compile_definitions(rarefy_options INTERFACE "HWY_DISABLED_TARGETS=(HWY_SSSE3|HWY_SSE4|HWY_AVX3|HWY_AVX3_DL)")
else()
  target_compile_definitions(rarefy_options INTERFACE HWY_WANT_AVX3_DL HWY_DISABLED_TARGETS=HWY_SSSE3)
endif()
