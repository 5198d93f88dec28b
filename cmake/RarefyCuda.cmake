# The CUDA half of the library: kernels in *.cu, host code in *_cuda.cpp. Included only with RAREFY_CUDA.
set(CMAKE_CUDA_ARCHITECTURES ${RAREFY_CUDA_ARCHITECTURES})
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc 13 has C++20
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
find_package(CUDAToolkit 12.4 REQUIRED)

# What every file of kernels is compiled with. Relaxed constexpr: host and device share the offsets of the page format.
# Spills are errors.
add_library(rarefy_cuda_options INTERFACE)
target_compile_options(rarefy_cuda_options INTERFACE
  "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-Xptxas=-warn-spills,-Werror;-Xcompiler=-Wall,-Wextra;-lineinfo>")
# fmt turns its constexpr off under nvcc, which its consteval format strings then miss.
target_compile_definitions(rarefy_cuda_options INTERFACE RAREFY_CUDA=1 $<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1>)
target_include_directories(rarefy_cuda_options INTERFACE ${CMAKE_SOURCE_DIR})
target_link_libraries(rarefy_cuda_options INTERFACE fmt::fmt CUDA::cudart_static)

file(GLOB_RECURSE rarefy_cuda_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/rarefy/*.cu)
add_library(rarefy_kernels OBJECT ${rarefy_cuda_sources})
# Sealing gives the CPU's bytes and losses, which have no fused multiply-add.
set_source_files_properties(${CMAKE_SOURCE_DIR}/rarefy/format24/compress_cuda.cu PROPERTIES COMPILE_OPTIONS -fmad=false)
target_link_libraries(rarefy_kernels PRIVATE rarefy_cuda_options)

target_sources(rarefy PRIVATE $<TARGET_OBJECTS:rarefy_kernels>)
target_compile_definitions(rarefy PUBLIC RAREFY_CUDA=1)
target_link_libraries(rarefy PUBLIC CUDA::cudart_static CUDA::cublasLt)
