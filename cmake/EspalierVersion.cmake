# The version of the tree, which tools/version reads from git's tags: its number, ESPALIER_VERSION_NUMBER, for
# project(); and for the command the whole of it, which states the commit too. The number is read when the tree is
# configured, so a new tag asks for that; the whole is written anew when HEAD has moved.
execute_process(COMMAND "${CMAKE_CURRENT_SOURCE_DIR}/tools/version" --number
  OUTPUT_VARIABLE ESPALIER_VERSION_NUMBER OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "tools/version does not know the version of this tree; the lines above say why")
endif()

# espalier_build_version(TARGET): its sources may include "espalier_build_version.h", which defines
# ESPALIER_BUILD_VERSION.
function(espalier_build_version target)
  set(header "${CMAKE_CURRENT_BINARY_DIR}/generated/espalier_build_version.h")
  # What git appends to whenever HEAD moves; absent where there is no git.
  execute_process(COMMAND git rev-parse --git-path logs/HEAD WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}"
    OUTPUT_VARIABLE moved OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  get_filename_component(moved "${moved}" ABSOLUTE BASE_DIR "${CMAKE_SOURCE_DIR}")
  if(EXISTS "${CMAKE_SOURCE_DIR}/VERSION")
    set(moved "${CMAKE_SOURCE_DIR}/VERSION")
  elseif(NOT EXISTS "${moved}" OR IS_DIRECTORY "${moved}")
    set(moved "")
  endif()
  file(MAKE_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/generated")
  add_custom_command(OUTPUT "${header}" COMMAND "${CMAKE_SOURCE_DIR}/tools/version" --header "${header}"
    DEPENDS "${CMAKE_SOURCE_DIR}/tools/version" ${moved} VERBATIM)
  target_sources(${target} PRIVATE "${header}")
  target_include_directories(${target} PRIVATE "${CMAKE_CURRENT_BINARY_DIR}/generated")
endfunction()
