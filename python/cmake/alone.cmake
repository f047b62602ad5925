# The extension as a project of its own: see CMakeLists.txt beside this folder. Installs the package's
# files that are not Python's: the extension, libespalier, the command, the model that ships.
set(root "${CMAKE_CURRENT_SOURCE_DIR}/..")
if(DEFINED ENV{ESPALIER_BUILD})
  get_filename_component(ESPALIER_BUILD "$ENV{ESPALIER_BUILD}" ABSOLUTE)
endif()
set(ESPALIER_BUILD "${root}/build/release" CACHE PATH "a build folder of the tree")
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
find_package(Espalier 0.1 QUIET COMPONENTS lang PATHS "${ESPALIER_BUILD}" NO_DEFAULT_PATH)
if(Espalier_FOUND AND NOT EXISTS "${ESPALIER_BUILD}/libespalier.so")
  set(Espalier_FOUND OFF)  # configured, and not built yet
endif()
if(NOT Espalier_FOUND AND CMAKE_PREFIX_PATH)
  find_package(Espalier 0.1 QUIET COMPONENTS lang)
endif()
if(NOT Espalier_FOUND)
  message(STATUS "libespalier is neither in ${ESPALIER_BUILD} nor installed: building it there, which takes minutes")
  if(NOT EXISTS "${ESPALIER_BUILD}/build.ninja")
    execute_process(COMMAND ${CMAKE_COMMAND} -S "${root}" -B "${ESPALIER_BUILD}" -G Ninja
      -DCMAKE_BUILD_TYPE=Release COMMAND_ERROR_IS_FATAL ANY)
  endif()
  execute_process(COMMAND ${CMAKE_COMMAND} --build "${ESPALIER_BUILD}" --target espalier_engine_api
    espalier_lang_header espalier COMMAND_ERROR_IS_FATAL ANY)
  find_package(Espalier 0.1 REQUIRED COMPONENTS lang PATHS "${ESPALIER_BUILD}" NO_DEFAULT_PATH)
endif()
get_target_property(library Espalier::engine LOCATION)
message(STATUS "Espalier ${Espalier_VERSION}: ${library}; Python ${Python_VERSION}")

# The tree's own extension, where it is for this version of Python; else one is compiled.
set(built "${ESPALIER_BUILD}/python/espalier/_native.${Python_SOABI}.so")
if(EXISTS "${built}")
  execute_process(COMMAND ${CMAKE_COMMAND} --build "${ESPALIER_BUILD}" --target espalier_python
    OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  install(PROGRAMS "${built}" DESTINATION espalier)
else()
  find_package(pybind11 2.10 CONFIG REQUIRED)
  pybind11_add_module(espalier_python NO_EXTRAS ${sources})
  set_target_properties(espalier_python PROPERTIES OUTPUT_NAME _native
    CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF INSTALL_RPATH "$ORIGIN/lib")
  # Parsing the headers is half of the compile time without this.
  target_precompile_headers(espalier_python PRIVATE src/bind.h <pybind11/stl.h>)
  # What it does with a processor's time is in the library.
  target_compile_options(espalier_python PRIVATE -O1)
  target_include_directories(espalier_python PRIVATE "${root}/src")
  target_link_libraries(espalier_python PRIVATE Espalier::lang)
  
  install(TARGETS espalier_python LIBRARY DESTINATION espalier)
endif()
install(FILES "${library}" DESTINATION espalier/lib
  RENAME libespalier.so.${Espalier_VERSION_MAJOR})
install(DIRECTORY "${root}/share/default_model" "${root}/share/seeing_model" DESTINATION espalier/share/espalier OPTIONAL)
foreach(command "${ESPALIER_BUILD}/espalier" "${Espalier_DIR}/../../../bin/espalier")
  if(EXISTS "${command}")
    install(PROGRAMS "${command}" DESTINATION espalier/bin)
    install(PROGRAMS "${CMAKE_CURRENT_SOURCE_DIR}/scripts/espalier"
      DESTINATION "${SKBUILD_SCRIPTS_DIR}")
    break()
  endif()
endforeach()
