# One benchmark program per file of bench/.
find_package(benchmark REQUIRED)
file(GLOB rarefy_bench_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/bench/*_bench.cpp)
foreach(source ${rarefy_bench_sources})
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE rarefy benchmark::benchmark)
endforeach()
