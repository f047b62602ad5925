# Sources of a target compiled several at a time: what a room's sources include and instantiate is
# parsed and optimised once for a unit of them instead of once for each, which halves a full build.
#   ESPALIER_UNITS=OFF compiles every source alone. Without precompiled headers (the sanitizers'
#   presets, clang) that is always so, which shows a source that needs another one's includes or names.
# The price: names at namespace scope, in anonymous namespaces too, must differ within a unit. A source
# with compile options or definitions of its own stays alone, as does one whose property
# SKIP_UNITY_BUILD_INCLUSION is set.
# CMake's UNITY_BUILD names sources by absolute paths, which would keep ccache from sharing results
# between worktrees; these units name them relative to include folders.
option(ESPALIER_UNITS "sources compiled several at a time (GCC)" ON)

# espalier_source_alone(RESULT source): whether a source may not share a unit.
function(espalier_source_alone result source)
  set(alone OFF)
  if(NOT source MATCHES "\\.cc$")  # .cu files: see espalier_cuda_unit
    set(alone ON)
  endif()
  foreach(property COMPILE_OPTIONS COMPILE_DEFINITIONS SKIP_UNITY_BUILD_INCLUSION)
    get_source_file_property(value "${source}" ${property})
    if(value)
      set(alone ON)
    endif()
  endforeach()
  set(${result} ${alone} PARENT_SCOPE)
endfunction()

# espalier_write_unit(RESULT name.cc source ...)
#   the unit of these sources, whose paths are relative to this folder. One source is its own unit.
#   A unit names its sources relative to src/, the folder that every target includes from.
function(espalier_write_unit result name)
  list(LENGTH ARGN count)
  if(count EQUAL 1)
    set(${result} ${ARGN} PARENT_SCOPE)
    return()
  endif()
  set(text "")
  foreach(source ${ARGN})
    get_filename_component(full "${source}" ABSOLUTE)
    file(RELATIVE_PATH path "${CMAKE_SOURCE_DIR}/src" "${full}")
    string(APPEND text "#include \"${path}\"\n")
  endforeach()
  set(unit "${CMAKE_CURRENT_BINARY_DIR}/units/${name}")
  file(CONFIGURE OUTPUT "${unit}" CONTENT "${text}" @ONLY)
  set(${result} "${unit}" PARENT_SCOPE)
endfunction()

# espalier_units(RESULT target size source ...)
#   the sources in the order given, `size` to a unit. A unit ends where a folder does, unless it has
#   few sources yet, so that a source added to one folder leaves the units of the others as they are.
function(espalier_units result target size)
  if(NOT ESPALIER_UNITS OR NOT ESPALIER_PRECOMPILED)
    set(${result} ${ARGN} PARENT_SCOPE)
    return()
  endif()
  set(sources "")
  set(unit "")
  set(number 0)
  set(folder "")
  math(EXPR few "${size} / 2")
  foreach(source ${ARGN})
    espalier_source_alone(alone "${source}")
    if(alone)
      list(APPEND sources "${source}")
      continue()
    endif()
    get_filename_component(in "${source}" DIRECTORY)
    list(LENGTH unit count)
    if(count EQUAL size OR (count GREATER_EQUAL few AND count GREATER 0 AND NOT in STREQUAL folder))
      espalier_write_unit(made ${target}_${number}.cc ${unit})
      list(APPEND sources "${made}")
      math(EXPR number "${number} + 1")
      set(unit "")
    endif()
    list(APPEND unit "${source}")
    set(folder "${in}")
  endforeach()
  if(unit)
    espalier_write_unit(made ${target}_${number}.cc ${unit})
    list(APPEND sources "${made}")
  endif()
  set(${result} ${sources} PARENT_SCOPE)
endfunction()
