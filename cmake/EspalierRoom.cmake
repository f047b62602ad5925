# espalier_room(NAME SOURCES a.cc ... DEPS other_room ... LIBS third::party ...)
#   the static library espalier_NAME of the room src/NAME. DEPS are rooms, by name.
function(espalier_room name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;LIBS" ${ARGN})
  list(TRANSFORM ARG_DEPS PREPEND espalier_)
  if(ARG_SOURCES)
    espalier_units(sources espalier_${name} 8 ${ARG_SOURCES})
    add_library(espalier_${name} STATIC ${sources})
    target_link_libraries(espalier_${name} PUBLIC espalier_options ${ARG_DEPS} ${ARG_LIBS})
    set(kind room)
    if(name IN_LIST ESPALIER_UNCHECKED_ROOMS)
      set(kind unchecked_room)
    endif()
    espalier_precompiled(espalier_${name} ${kind} ${ARG_DEPS} ${ARG_LIBS})
    if(name MATCHES "^(tensor|kernels|checkpoint)$")
      set_target_properties(espalier_${name} PROPERTIES ESPALIER_READS_BYTES ON)
    endif()
  else()
    add_library(espalier_${name} INTERFACE)
    target_link_libraries(espalier_${name} INTERFACE espalier_options ${ARG_DEPS} ${ARG_LIBS})
  endif()
endfunction()

# espalier_compiled_quickly(TARGET)
#   for code that runs once or waits for others (tests, commands, benchmarks' clients): a third of its
#   compile time is the optimiser's, which buys nothing there. What it measures or calls is in rooms.
function(espalier_compiled_quickly target)
  target_compile_options(${target} PRIVATE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1>)
  get_target_property(libraries ${target} LINK_LIBRARIES)
  espalier_precompiled(${target} quick ${libraries})
endfunction()

# The same for single sources, where others of their target hold the loops that are timed.
function(espalier_source_compiled_quickly)
  set_property(SOURCE ${ARGN} PROPERTY COMPILE_OPTIONS $<$<CONFIG:Release>:-O1>)
endfunction()

# espalier_test(NAME SOURCES a_test.cc ... DEPS room ... LIBS third::party ...)
#   one test binary (NAME_test) for a room, its cases listed one by one in ctest. Tests run in the
#   source folder, so fixtures are found by paths relative to the repository's root.
function(espalier_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS;LIBS" ${ARGN})
  list(TRANSFORM ARG_DEPS PREPEND espalier_)
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  espalier_units(sources ${name}_test 5 ${ARG_SOURCES})
  add_executable(${name}_test ${sources})
  target_link_libraries(${name}_test PRIVATE espalier_options ${ARG_DEPS} ${ARG_LIBS}
    GTest::gmock GTest::gtest_main)
  espalier_compiled_quickly(${name}_test)
  espalier_precompiled(${name}_test test ${ARG_DEPS} ${ARG_LIBS})
  # By their names alone: what gtest prints of a parameter may be its bytes, addresses among them.
  gtest_discover_tests(${name}_test WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}" NO_PRETTY_VALUES
    DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT ${ARG_TIMEOUT})
endfunction()
include(GoogleTest)
