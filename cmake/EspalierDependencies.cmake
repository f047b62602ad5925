# Every library that Espalier uses, in one place. Debian 12's versions are the oldest accepted;
# tools/setup names their packages.
find_package(Threads REQUIRED)
find_package(Boost 1.74 REQUIRED COMPONENTS json)  # JSON; Asio and Beast are header-only
find_package(OpenSSL REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(CLI11 REQUIRED)
find_package(tl-expected REQUIRED)   # std::expected for C++20
find_package(prometheus-cpp REQUIRED)
find_package(GTest REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(CURL REQUIRED libcurl)  # the header; loaded when a model is fetched
pkg_check_modules(LIBEDIT REQUIRED libedit)  # the header; loaded when `espalier chat` reads a terminal
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)  # expressions of model files, never of clients
pkg_check_modules(re2 REQUIRED re2)  # tests only: what stop expressions are compared with
find_package(JPEG REQUIRED)  # libjpeg-turbo, and the next three: pictures that clients send
find_package(PNG REQUIRED)
find_package(GIF REQUIRED)
pkg_check_modules(webp REQUIRED IMPORTED_TARGET libwebp)
find_path(FFMPEG_INCLUDE_DIR libavformat/avformat.h PATH_SUFFIXES ffmpeg DOC "FFmpeg's headers")  # files of videos; the headers: its libraries are loaded when a video is read
find_package(tomlplusplus REQUIRED)
find_package(SQLite3 REQUIRED)  # what the server keeps of files and batches
pkg_check_modules(liburing IMPORTED_TARGET liburing)  # direct I/O of the disk tier; without it threads read and write
find_path(ZMQ_INCLUDE_DIR zmq.h DOC "ZeroMQ's header")  # events of caches over ZeroMQ; the header: libzmq is loaded when they are published or read
find_path(NGHTTP2_INCLUDE_DIR nghttp2/nghttp2.h DOC "nghttp2's header")  # the router as Envoy's endpoint picker; the header: libnghttp2 is loaded when it is asked for
find_path(XXHASH_INCLUDE_DIR xxhash.h REQUIRED)  # used header-only (XXH_INLINE_ALL)
# PNG plots of benchmarks, run as a program: librsvg's rsvg-convert (librsvg2-bin), which
# `espalier_bench workloads --plots` asks for when it is not there.
find_program(RSVG_CONVERT rsvg-convert)
if(NOT RSVG_CONVERT)
  message(STATUS "rsvg-convert is missing: espalier_bench workloads --plots will ask for it (tools/setup --plots)")
endif()
find_package(Python3 REQUIRED COMPONENTS Interpreter)  # tests and benchmarks only
