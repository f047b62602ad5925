# The CUDA back end: whether it is built, for which GPUs, and how.
#   ESPALIER_CUDA=AUTO  built where nvcc 12 or later and cuBLASLt are found (no GPU is needed to build)
#                 ON    required: configuring fails without them
#                 OFF   left out
# Sets ESPALIER_HAS_CUDA. Targets with .cu files link espalier_cuda_options; which sources a target
# has is CMake's choice, so code has no #ifdef for it.
set(ESPALIER_CUDA "AUTO" CACHE STRING "the CUDA back end: AUTO, ON or OFF")
set_property(CACHE ESPALIER_CUDA PROPERTY STRINGS AUTO ON OFF)
# Machine code for Hopper with its own instructions (sm_90a, not portable), and PTX for all later and
# for Ampere, which the driver compiles at start. A list in CMake's notation.
set(ESPALIER_CUDA_ARCHITECTURES "80-virtual;90a-real" CACHE STRING "GPUs to compile for")
set(ESPALIER_HAS_CUDA OFF)

if(NOT ESPALIER_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "ESPALIER_CUDA is '${ESPALIER_CUDA}', but must be AUTO, ON or OFF")
endif()
if(ESPALIER_CUDA STREQUAL "OFF")
  message(STATUS "CUDA: off")
  return()
endif()

find_program(ESPALIER_NVCC nvcc HINTS "$ENV{CUDA_HOME}/bin" /usr/local/cuda/bin)
if(ESPALIER_NVCC)
  set(CMAKE_CUDA_COMPILER "${ESPALIER_NVCC}" CACHE FILEPATH "nvcc")
  set(CMAKE_CUDA_ARCHITECTURES "${ESPALIER_CUDA_ARCHITECTURES}")
  # CMake 3.25 knows no option for C++20 with nvcc 13.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  enable_language(CUDA)
  find_package(CUDAToolkit 12.0)
endif()
if(NOT ESPALIER_NVCC OR NOT CUDAToolkit_FOUND OR NOT TARGET CUDA::cublasLt)
  if(ESPALIER_CUDA STREQUAL "ON")
    message(FATAL_ERROR "ESPALIER_CUDA is ON, but nvcc 12 or later with cuBLASLt was not found; "
      "install the CUDA toolkit, put nvcc on the PATH or set CUDA_HOME, or configure with "
      "-DESPALIER_CUDA=OFF")
  endif()
  message(STATUS "CUDA: no toolkit found; the CUDA back end is left out")
  return()
endif()
set(ESPALIER_HAS_CUDA ON)
message(STATUS "CUDA: ${CMAKE_CUDA_COMPILER_VERSION}, for ${ESPALIER_CUDA_ARCHITECTURES}")

set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
if(CCACHE_PROGRAM)
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${CCACHE_PROGRAM}")
endif()
# ptxas takes gigabytes for the large templates, so that one heavy unit at a time is compiled unless more are asked for.
set(ESPALIER_CUDA_JOBS 1 CACHE STRING "CUDA sources compiled at once, 2 to 5 GB of memory each")
set_property(GLOBAL APPEND PROPERTY JOB_POOLS espalier_cuda=${ESPALIER_CUDA_JOBS})

# A build that is the same in every folder. nvcc makes names of the source's absolute path and of random numbers: they are
# the object's name here. An object names its temporary file, with a process id, in one symbol, which is removed. Line
# tables, which profilers read, hold absolute paths, so that there are none.
set(lines -lineinfo)
if(ESPALIER_REPRODUCIBLE)
  set(lines "")
  string(REPLACE " -o <OBJECT>" " -frandom-seed=<OBJECT> -Xcudafe=--orig_src_path_name=<OBJECT> -o <OBJECT>"
    CMAKE_CUDA_COMPILE_OBJECT "${CMAKE_CUDA_COMPILE_OBJECT}")
  list(APPEND CMAKE_CUDA_COMPILE_OBJECT "${CMAKE_OBJCOPY} --wildcard --strip-symbol=tmpxft_* <OBJECT>")
endif()

# What every target with .cu files links: our warnings for host code, quiet for what nvcc generates.
add_library(espalier_cuda_options INTERFACE)
target_compile_options(espalier_cuda_options INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra
    -diag-suppress=177 ${lines}>)
if(ESPALIER_WERROR)
  target_compile_options(espalier_cuda_options INTERFACE
    $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
endif()
# fmt 9 and 10 turn constexpr off under nvcc, which then cannot check their format strings.
target_compile_definitions(espalier_cuda_options INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1>)
target_include_directories(espalier_cuda_options INTERFACE "${CMAKE_SOURCE_DIR}/src")
target_link_libraries(espalier_cuda_options INTERFACE CUDA::cudart_static)

# espalier_cuda_unit(RESULT NAME a.cu b.cu ...)
#   several .cu files compiled as one: the toolkit's headers cost 8 s of processor time for each
#   compilation, four times as much as a small kernel does. Their names at namespace scope differ.
function(espalier_cuda_unit result name)
  if(ESPALIER_UNITS)
    espalier_write_unit(unit ${name}.cu ${ARGN})
    set(${result} "${unit}" PARENT_SCOPE)
  else()
    set(${result} ${ARGN} PARENT_SCOPE)
  endif()
endfunction()

# espalier_cuda_room(NAME SOURCES a.cu b.cc ... DEPS room ... LIBS CUDA::cublasLt ...)
#   the static library espalier_NAME_cuda: the CUDA part of the room src/NAME, which links it.
function(espalier_cuda_room name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;LIBS" ${ARGN})
  list(TRANSFORM ARG_DEPS PREPEND espalier_)
  espalier_units(sources espalier_${name}_cuda 5 ${ARG_SOURCES})
  add_library(espalier_${name}_cuda STATIC ${sources})
  # CMake 3.25's ninja pool for compiling holds a target's .cc files too; they are few and light.
  set_target_properties(espalier_${name}_cuda PROPERTIES JOB_POOL_COMPILE espalier_cuda)
  target_link_libraries(espalier_${name}_cuda PUBLIC espalier_cuda_options ${ARG_DEPS} ${ARG_LIBS})
endfunction()

# espalier_hopper_objects(RESULT NAME a.cu b.cu ...)
#   the objects of .cu files whose kernels are launched on Hopper and later alone (their launchers ask
#   for compute capability 90): no code is made of them for older GPUs, which would double their
#   compile time. A build for older GPUs alone compiles them all the same, so that it links.
function(espalier_hopper_objects result name)
  set(architectures ${ESPALIER_CUDA_ARCHITECTURES})
  list(FILTER architectures INCLUDE REGEX "^(9|[1-9][0-9])[0-9]")
  if(NOT architectures)
    set(architectures ${ESPALIER_CUDA_ARCHITECTURES})
  endif()
  add_library(${name} OBJECT ${ARGN})
  set_target_properties(${name} PROPERTIES CUDA_ARCHITECTURES "${architectures}"
    JOB_POOL_COMPILE espalier_cuda)
  target_link_libraries(${name} PRIVATE espalier_cuda_options espalier_options)
  set(${result} $<TARGET_OBJECTS:${name}> PARENT_SCOPE)
endfunction()
