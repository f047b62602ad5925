# What makes a defect in the code hard to exploit, for every target: a program that reads what strangers
# send is built so. tests/hardening/binary_test.py reads the built binary and fails where a part is missing.
#   ESPALIER_HARDENING=OFF leaves it all out, to measure what it costs.
# The sanitizers replace it: they check the same and more, and conflict with the library's fortified calls.
option(ESPALIER_HARDENING "protection of stack, calls and relocations; checks of the standard library" ON)
if(ESPALIER_SANITIZE OR ESPALIER_FUZZ)
  set(ESPALIER_HARDENING OFF)
endif()

# Rooms in whose inner loops the checks of std::vector and std::span cost more than 1 %. All other code
# checks every index (_GLIBCXX_ASSERTIONS).
#   -DESPALIER_UNCHECKED_ROOMS="tensor;kernels;models" names others, to measure what their checks cost. With these
# three, `espalier_bench host` took 33.4 us a step instead of 33.05 (256 running, none ends: 1.1 %) and 102.2 instead
# of 100.4 (--output-len 64 --waiting 9100: 1.8 %); with cache and scheduler unchecked too, 33.4 and 101.2. Medians of
# 11 or 12 runs in turn, 2026-11-30.
if(NOT DEFINED ESPALIER_UNCHECKED_ROOMS)
  set(ESPALIER_UNCHECKED_ROOMS tensor kernels cache models engine scheduler speculation executor sampling)
endif()

include(CheckPIESupported)
check_pie_supported(LANGUAGES C CXX)

# espalier_checks_indices(TARGET): its own sources check every index of the standard library's containers.
function(espalier_checks_indices target)
  if(ESPALIER_HARDENING)
    target_compile_definitions(${target} PRIVATE $<$<COMPILE_LANGUAGE:C,CXX>:_GLIBCXX_ASSERTIONS>)
  endif()
endfunction()

if(ESPALIER_HARDENING)
  espalier_host_options(-fstack-protector-strong -fstack-clash-protection)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    espalier_host_options(-fcf-protection=full)
  elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
    espalier_host_options(-mbranch-protection=standard)
  endif()
  # Fortified calls need an optimiser, and some compilers predefine a level of their own.
  espalier_host_options($<$<NOT:$<CONFIG:Debug>>:-U_FORTIFY_SOURCE>
    $<$<NOT:$<CONFIG:Debug>>:-D_FORTIFY_SOURCE=3>)
  target_link_options(espalier_options INTERFACE LINKER:-z,relro LINKER:-z,now LINKER:-z,noexecstack)
endif()
