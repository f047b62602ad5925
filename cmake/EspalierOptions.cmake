# Compiler settings that hold for every target of the project.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(ESPALIER_SANITIZE "" CACHE STRING "sanitizers, as in -fsanitize= (address,undefined or thread)")
option(ESPALIER_WERROR "warnings are errors" ON)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  # What ccache must overlook to keep results of sources with precompiled headers.
  set(CMAKE_CXX_COMPILER_LAUNCHER env
    "CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime" "${CCACHE_PROGRAM}")
  set(CMAKE_C_COMPILER_LAUNCHER "${CCACHE_PROGRAM}")
endif()

# Two builds of one commit are the same bytes, wherever their folders lie: no file holds a path of the source or the
# build folder, and the compiler numbers the names that it makes up by the object instead of at random. Packages are
# built so (the preset package). It is off elsewhere, for it costs what ccache knows of other folders.
option(ESPALIER_REPRODUCIBLE "the same bytes in every folder: no path of this computer in a file" OFF)
if(ESPALIER_REPRODUCIBLE)
  file(RELATIVE_PATH up "${CMAKE_BINARY_DIR}" "${CMAKE_SOURCE_DIR}/")  # as ccache writes sources
  foreach(map "${CMAKE_SOURCE_DIR}/=" "${up}=" "${CMAKE_BINARY_DIR}/=build/")
    add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-ffile-prefix-map=${map}>
      $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-ffile-prefix-map=${map}>)
  endforeach()
  foreach(language C CXX)
    string(REPLACE " -o <OBJECT>" " -frandom-seed=<OBJECT> -o <OBJECT>"
      CMAKE_${language}_COMPILE_OBJECT "${CMAKE_${language}_COMPILE_OBJECT}")
  endforeach()
endif()

# Binaries land in the build folder itself: build/release/espalier, build/release/base_test.
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}")

# Options are for C and C++ alone: nvcc's are in EspalierCuda.cmake.
add_library(espalier_options INTERFACE)
function(espalier_host_options)
  foreach(option ${ARGN})
    target_compile_options(espalier_options INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:${option}>)
  endforeach()
endfunction()
espalier_host_options(-Wall -Wextra -Wpedantic -Wshadow=local
  -Wno-missing-field-initializers
  -Wno-restrict  # GCC 12 warns falsely of strings joined by operator+
  -Wno-subobject-linkage)  # it takes a source in a unit (EspalierUnits.cmake) for a header
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # Collecting garbage takes a twelfth of a compilation that stays below this many kilobytes.
  espalier_host_options(--param=ggc-min-heapsize=400000)
endif()
if(ESPALIER_WERROR)
  espalier_host_options(-Werror)
endif()
option(ESPALIER_FUZZ "libFuzzer targets under the address sanitizer (clang only)" OFF)
if(ESPALIER_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "ESPALIER_FUZZ needs clang, 15 or later: cmake --preset fuzz")
  endif()
  espalier_host_options(-fsanitize=fuzzer-no-link,address -fno-omit-frame-pointer)
  target_link_options(espalier_options INTERFACE -fsanitize=address)
endif()
target_include_directories(espalier_options INTERFACE "${CMAKE_SOURCE_DIR}/src")
# BOOST_JSON and Asio are used as libraries or header-only with their deprecated parts off.
target_compile_definitions(espalier_options INTERFACE BOOST_ASIO_NO_DEPRECATED)
if(ESPALIER_SANITIZE)
  espalier_host_options("-fsanitize=${ESPALIER_SANITIZE}"
    -fno-omit-frame-pointer -fno-sanitize-recover=all
    -Wno-maybe-uninitialized)  # GCC 12 sees phantoms in instrumented code (boost::optional)
  target_link_options(espalier_options INTERFACE -fsanitize=${ESPALIER_SANITIZE})
  if(ESPALIER_SANITIZE MATCHES "undefined")
    # Half of an instrumented build's time, for what the address sanitizer reports too (null,
    # object-size) or nothing here does (vptr: no downcasts), and for alignment, which the rooms that
    # read numbers out of bytes keep (ESPALIER_READS_BYTES).
    espalier_host_options(-fno-sanitize=null,object-size,vptr
      $<$<NOT:$<BOOL:$<TARGET_PROPERTY:ESPALIER_READS_BYTES>>>:-fno-sanitize=alignment>)
  endif()
  if(ESPALIER_SANITIZE MATCHES "thread")
    # Asio's fences, which that sanitizer does not follow; nothing of ours hangs on them alone.
    espalier_host_options(-Wno-tsan)
  endif()
endif()
