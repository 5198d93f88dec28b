# Copies the shared libraries that PROGRAM needs, but for the C library's own, to FOLDER: run with cmake -P after linking.
file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${PROGRAM} RESOLVED_DEPENDENCIES_VAR libraries UNRESOLVED_DEPENDENCIES_VAR missing
  PRE_EXCLUDE_REGEXES "^ld-linux.*" "^lib(c|m|dl|rt|pthread|resolv)\\.so.*")
if(missing)
  message(FATAL_ERROR "not found: ${missing}")
endif()
foreach(library ${libraries})
  file(COPY ${library} DESTINATION ${FOLDER} FOLLOW_SYMLINK_CHAIN)
endforeach()
