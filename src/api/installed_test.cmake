# Installs the libraries into a folder of the build, builds the examples against them and runs them:
# the grammar alone, then all. Lists the symbols that each library shows.
# Run as: cmake -DBUILD=... -DLIBDIR=... -DEXAMPLE=... -DC_COMPILER=... -DCXX_COMPILER=... -P
file(REMOVE_RECURSE "${BUILD}/installed")

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "failed: ${ARGN}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

# build_examples(PREFIX BINARIES)
function(build_examples prefix binaries)
  run(${CMAKE_COMMAND} -S ${EXAMPLE} -B ${binaries} -DCMAKE_PREFIX_PATH=${prefix}
    -DCMAKE_C_COMPILER=${C_COMPILER} -DCMAKE_CXX_COMPILER=${CXX_COMPILER})
  run(${CMAKE_COMMAND} --build ${binaries} --parallel 2)
endfunction()

# with_pkg_config(NAME PREFIX OUTPUT COMPILER...): compiles by what pkg-config says of NAME.
function(with_pkg_config name prefix output)
  set(ENV{PKG_CONFIG_PATH} "${prefix}/${LIBDIR}/pkgconfig")
  run(pkg-config --cflags --libs ${name})
  separate_arguments(flags UNIX_COMMAND "${output}")
  list(POP_FRONT ARGN)
  run(${ARGV3} ${ARGN} -Wall -Wextra -Werror -o ${ARGV2} ${flags} -Wl,-rpath,${prefix}/${LIBDIR})
  run(${ARGV2})
endfunction()

# only_symbols(LIBRARY EXPRESSION): no other dynamic symbol is defined.
function(only_symbols library expression)
  run(nm -DC --defined-only ${library})
  string(REPLACE ";" "," output "${output}")
  string(REGEX REPLACE "[][]" "|" output "${output}")
  string(REGEX MATCHALL "[^\n]+" symbols "${output}")
  list(FILTER symbols EXCLUDE REGEX "^[0-9a-f]* +[A-Za-z] (${expression})")
  if(symbols)
    list(JOIN symbols "\n" symbols)
    message(FATAL_ERROR "${library} shows symbols that are not of its interface:\n${symbols}")
  endif()
endfunction()

set(alone "${BUILD}/installed/grammar")
run(${CMAKE_COMMAND} --install ${BUILD} --component grammar --prefix ${alone})
build_examples(${alone} ${alone}/example)
run(${alone}/example/grammar_c)
with_pkg_config(espalier_grammar ${alone} ${alone}/example/by_pkg_config
  ${C_COMPILER} -std=c99 ${EXAMPLE}/grammar.c)

set(prefix "${BUILD}/installed/all")
foreach(component grammar engine)
  run(${CMAKE_COMMAND} --install ${BUILD} --component ${component} --prefix ${prefix})
endforeach()
build_examples(${prefix} ${prefix}/example)
foreach(program grammar_c grammar_cc engine_c engine_cc lang_cc)
  run(${prefix}/example/${program})
endforeach()
with_pkg_config(espalier ${prefix} ${prefix}/example/by_pkg_config
  ${C_COMPILER} -std=c99 ${EXAMPLE}/engine.c)

set(lib "${prefix}/${LIBDIR}")
only_symbols(${lib}/libespalier_grammar.so "esp_(vocabulary|grammar|matcher)_[a-z_]+$")
only_symbols(${lib}/libespalier.so
  "esp_(engine|request|call)_[a-z_]+$|((typeinfo|typeinfo name|vtable) for )?espalier::(lang::|api::|Status::|status_code_name)")
