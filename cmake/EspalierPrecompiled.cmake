# Precompiled headers: the standard library, fmt, Boost.JSON and googletest, which no change of this
# project touches, are parsed once for each set of options instead of once for each source.
#   ESPALIER_PRECOMPILED=OFF compiles every source with its own includes alone. The sanitizers' presets
#   do so, which shows a source that lacks an include. Clang refuses headers precompiled with other
#   definitions, so it always does.
option(ESPALIER_PRECOMPILED "precompiled headers of the libraries (GCC)" ON)
if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(ESPALIER_PRECOMPILED OFF)
endif()

set(espalier_std_headers <algorithm> <array> <atomic> <bit> <charconv> <chrono> <cmath>
  <condition_variable> <cstdint> <cstdio> <cstdlib> <cstring> <deque> <filesystem> <fstream> <functional>
  <future> <limits> <list> <map> <memory> <mutex> <numeric> <optional> <queue> <random> <set> <span>
  <sstream> <string> <string_view> <thread> <tuple> <unordered_map> <unordered_set> <utility> <variant>
  <vector> <fmt/format.h> <tl/expected.hpp>)

# espalier_precompiled_owner(NAME OPTIONS option ... HEADERS <a> ... LIBS third::party ...)
#   the target whose precompiled header targets of the same options share. All code is compiled with
#   -fPIC, in executables too, for GCC refuses a header precompiled with another setting.
function(espalier_precompiled_owner name)
  cmake_parse_arguments(ARG "" "" "OPTIONS;HEADERS;LIBS" ${ARGN})
  set(source "${CMAKE_BINARY_DIR}/precompiled/${name}.cc")
  if(NOT EXISTS "${source}")
    file(WRITE "${source}" "// Its target owns the precompiled header.\n")
  endif()
  add_library(${name} OBJECT "${source}")
  target_link_libraries(${name} PRIVATE espalier_options ${ARG_LIBS})
  target_compile_options(${name} PRIVATE ${ARG_OPTIONS})
  if(NOT name MATCHES "_unchecked_room")
    espalier_checks_indices(${name})
  endif()
  target_precompile_headers(${name} PRIVATE ${espalier_std_headers} ${ARG_HEADERS})
endfunction()

if(ESPALIER_PRECOMPILED)
  # ccache keys a source by the contents of the header that GCC reads precompiled.
  espalier_host_options(-fpch-preprocess)
  set(base_libs fmt::fmt tl::expected)
  set(test_libs GTest::gtest GTest::gmock)
  set(test_headers <gtest/gtest.h> <gmock/gmock.h>)
  set(quick $<$<CONFIG:Release>:-O1>)
  espalier_precompiled_owner(espalier_precompiled_room LIBS ${base_libs})
  espalier_precompiled_owner(espalier_precompiled_room_json LIBS ${base_libs} Boost::json
    HEADERS <boost/json.hpp>)
  espalier_precompiled_owner(espalier_precompiled_unchecked_room LIBS ${base_libs})
  espalier_precompiled_owner(espalier_precompiled_unchecked_room_json LIBS ${base_libs} Boost::json
    HEADERS <boost/json.hpp>)
  espalier_precompiled_owner(espalier_precompiled_quick_json LIBS ${base_libs} Boost::json
    OPTIONS ${quick} HEADERS <boost/json.hpp>)
  espalier_precompiled_owner(espalier_precompiled_test LIBS ${base_libs} ${test_libs}
    OPTIONS ${quick} HEADERS ${test_headers})
  espalier_precompiled_owner(espalier_precompiled_test_json LIBS ${base_libs} ${test_libs} Boost::json
    OPTIONS ${quick} HEADERS ${test_headers} <boost/json.hpp>)
endif()

# espalier_uses_json(RESULT room target ...)
#   whether one of the targets carries Boost.JSON to those who link it: its definitions must then be
#   those of the precompiled header. Targets that are defined later count as carrying none.
function(espalier_uses_json result)
  set(found OFF)
  foreach(target ${ARGN})
    if(target STREQUAL "Boost::json")
      set(found ON)
    elseif(TARGET ${target})
      get_target_property(carries ${target} ESPALIER_JSON)
      if(carries)
        set(found ON)
      endif()
    endif()
  endforeach()
  set(${result} ${found} PARENT_SCOPE)
endfunction()

# espalier_precompiled(TARGET KIND LIBS ...): lets TARGET share the precompiled header of its KIND
# (room, unchecked_room, quick or test), with Boost.JSON in it where the target's libraries carry that.
# All kinds but unchecked_room check every index (EspalierHardening.cmake).
function(espalier_precompiled target kind)
  if(NOT kind STREQUAL "unchecked_room")
    espalier_checks_indices(${target})
  endif()
  espalier_uses_json(json ${ARGN})
  if(json)
    set_target_properties(${target} PROPERTIES ESPALIER_JSON ON)
    set(kind "${kind}_json")
  endif()
  if(ESPALIER_PRECOMPILED AND TARGET espalier_precompiled_${kind})
    set_target_properties(${target} PROPERTIES PRECOMPILE_HEADERS_REUSE_FROM
      espalier_precompiled_${kind})
    espalier_precompiled_warnings(${target})
    get_target_property(type ${target} TYPE)
    if(type STREQUAL "EXECUTABLE")
      target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fPIC>)
    endif()
    get_property(deferred DIRECTORY PROPERTY ESPALIER_PRECOMPILED_DEFERRED)
    if(NOT deferred)
      set_property(DIRECTORY PROPERTY ESPALIER_PRECOMPILED_DEFERRED ON)
      cmake_language(DEFER CALL espalier_precompiled_skips)
    endif()
  endif()
endfunction()

# GCC 12 keeps no record in a precompiled header of where warnings are off, so what the optimiser
# falsely reports inside the standard library becomes visible. Where headers are included as text, as
# in the sanitizers' presets, these warnings stay on and stay errors.
function(espalier_precompiled_warnings target)
  foreach(option no-stringop-overflow no-stringop-overread no-array-bounds
          no-error=maybe-uninitialized no-error=uninitialized no-error=free-nonheap-object
          no-error=dangling-pointer no-error=use-after-free no-error=nonnull
          no-error=mismatched-new-delete no-error=alloc-size-larger-than=)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-W${option}>)
  endforeach()
endfunction()

# Sources with options of their own (instruction sets, contraction) include their headers as text. It
# runs at the end of a directory, when all its sources have their options.
function(espalier_precompiled_skips)
  get_property(targets DIRECTORY PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target ${targets})
    get_target_property(sources ${target} SOURCES)
    foreach(source ${sources})
      get_source_file_property(options "${source}" COMPILE_OPTIONS)
      if(options)
        set_source_files_properties("${source}" PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
      endif()
    endforeach()
  endforeach()
endfunction()
