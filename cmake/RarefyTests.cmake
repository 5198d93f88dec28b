# One test program per folder of tests/, and a compile check of every public header on its own.
find_package(GTest REQUIRED)
find_package(rapidcheck REQUIRED)
include(GoogleTest)

file(GLOB rarefy_test_folders LIST_DIRECTORIES true CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/*)
foreach(folder ${rarefy_test_folders})
  get_filename_component(name ${folder} NAME)
  file(GLOB sources CONFIGURE_DEPENDS ${folder}/*_test.cpp)
  if(NOT sources)
    continue()
  endif()
  add_executable(test_${name} ${sources})
  target_link_libraries(test_${name} PRIVATE rarefy rarefy_app_dependencies rapidcheck GTest::gtest GTest::gmock GTest::gtest_main)
  # Tests read small committed goldens from here and the fetched model (if any) from models/.
  target_compile_definitions(test_${name} PRIVATE RAREFY_SOURCE_DIR="${CMAKE_SOURCE_DIR}" RAREFY_BINARY_DIR="${CMAKE_BINARY_DIR}")
  if(TARGET rarefy_app AND name STREQUAL "apps")  # these run the program itself
    add_dependencies(test_${name} rarefy_app)
  endif()
  # Tests run side by side: threads that spin while they wait would take the cores from each other.
  set(properties TIMEOUT 1200 ENVIRONMENT OMP_WAIT_POLICY=passive)
  gtest_discover_tests(test_${name} TEST_PREFIX ${name}. TEST_FILTER -Slow*:*Cuda* DISCOVERY_TIMEOUT 120 PROPERTIES ${properties})
  # Tests that need a GPU: skipped, visibly, without one.
  gtest_discover_tests(test_${name} TEST_PREFIX ${name}. TEST_FILTER *Cuda* TEST_LIST test_${name}_gpu DISCOVERY_TIMEOUT 120
    PROPERTIES ${properties} LABELS gpu SKIP_REGULAR_EXPRESSION "\\[  SKIPPED \\]")
  # End-to-end tests on the real model carry the label "slow".
  gtest_discover_tests(test_${name} TEST_PREFIX ${name}. TEST_FILTER Slow* TEST_LIST test_${name}_slow DISCOVERY_TIMEOUT 120
    PROPERTIES ${properties} LABELS slow)
endforeach()

file(GLOB_RECURSE rarefy_headers RELATIVE ${CMAKE_SOURCE_DIR} CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/rarefy/*.h)
set(header_checks)
foreach(header ${rarefy_headers})
  if(header MATCHES "-inl\\.h$")
    continue()
  endif()
  string(REPLACE "/" "_" stem ${header})
  set(source ${CMAKE_BINARY_DIR}/header_check/${stem}.cpp)
  file(CONFIGURE OUTPUT ${source} CONTENT "#include \"${header}\"\n#include \"${header}\"\n" @ONLY)
  list(APPEND header_checks ${source})
endforeach()
add_library(header_check OBJECT ${header_checks})
target_link_libraries(header_check PRIVATE rarefy)
