#include "hub/curl_library.h"

#include <dlfcn.h>

namespace espalier::hub {
namespace {

template <typename Function>
bool find(void* library, const char* name, Function& out) {
  out = reinterpret_cast<Function>(dlsym(library, name));
  return out != nullptr;
}

Result<CurlLibrary> open() {
  void* library = nullptr;
  for (const char* name : {"libcurl.so.4", "libcurl-gnutls.so.4"})
    if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  decltype(&::curl_global_init) global_init = nullptr;
  CurlLibrary curl{};
  if (library == nullptr || !find(library, "curl_global_init", global_init) ||
      !find(library, "curl_easy_init", curl.easy_init) ||
      !find(library, "curl_easy_setopt", curl.easy_setopt) ||
      !find(library, "curl_easy_perform", curl.easy_perform) ||
      !find(library, "curl_easy_getinfo", curl.easy_getinfo) ||
      !find(library, "curl_easy_reset", curl.easy_reset) ||
      !find(library, "curl_easy_cleanup", curl.easy_cleanup) ||
      !find(library, "curl_easy_strerror", curl.easy_strerror) ||
      !find(library, "curl_slist_append", curl.slist_append) ||
      !find(library, "curl_slist_free_all", curl.slist_free_all))
    return fail(error(StatusCode::kUnavailable,
                      "models are fetched with libcurl, which is not installed: install it "
                      "(Debian: apt-get install libcurl4), or give --model-path a folder"));
  if (global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
    return fail(error(StatusCode::kInternal, "libcurl does not initialise"));
  return curl;
}

}  // namespace

Result<const CurlLibrary*> CurlLibrary::load() {
  static const Result<CurlLibrary> loaded = open();
  if (!loaded) return fail(loaded.error());
  return &*loaded;
}

}  // namespace espalier::hub
