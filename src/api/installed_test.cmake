# Installs the grammar library into a folder of the build, builds the example against it and runs it:
# with find_package, then with pkg-config. Run as: cmake -DBUILD=... -DLIBDIR=... -DEXAMPLE=... -P
set(prefix "${BUILD}/installed/prefix")
set(example "${BUILD}/installed/example")
file(REMOVE_RECURSE "${BUILD}/installed")

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "failed: ${ARGN}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD} --component grammar --prefix ${prefix})
run(${CMAKE_COMMAND} -S ${EXAMPLE} -B ${example} -DCMAKE_PREFIX_PATH=${prefix}
  -DCMAKE_C_COMPILER=${C_COMPILER} -DCMAKE_CXX_COMPILER=${CXX_COMPILER})
run(${CMAKE_COMMAND} --build ${example})
run(${example}/grammar_c)
run(${example}/grammar_cc)

set(ENV{PKG_CONFIG_PATH} "${prefix}/${LIBDIR}/pkgconfig")
run(pkg-config --cflags --libs espalier_grammar)
separate_arguments(flags UNIX_COMMAND "${output}")
run(${C_COMPILER} -std=c99 -Wall -Wextra -Werror ${EXAMPLE}/grammar.c -o ${example}/by_pkg_config
  ${flags} -Wl,-rpath,${prefix}/${LIBDIR})
run(${example}/by_pkg_config)

# Only the C interface is visible.
run(nm -D --defined-only ${prefix}/${LIBDIR}/libespalier_grammar.so)
string(REGEX MATCHALL "[^\n]+" symbols "${output}")
list(FILTER symbols EXCLUDE REGEX " [TA] esp_[a-z_]+$")
if(symbols)
  message(FATAL_ERROR "symbols that are not of the interface: ${symbols}")
endif()
