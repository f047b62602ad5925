// libcurl, loaded when it is first needed. Linking it would load some thirty libraries at each
// start and put them into Python's wheels; most starts fetch nothing. Internal to the room.
#pragma once

#include <curl/curl.h>

#include "base/status.h"

namespace espalier::hub {

// The functions that the room calls. Immutable; thread-safe.
struct CurlLibrary {
  decltype(&::curl_easy_init) easy_init;
  decltype(&::curl_easy_setopt) easy_setopt;
  decltype(&::curl_easy_perform) easy_perform;
  decltype(&::curl_easy_getinfo) easy_getinfo;
  decltype(&::curl_easy_reset) easy_reset;
  decltype(&::curl_easy_cleanup) easy_cleanup;
  decltype(&::curl_easy_strerror) easy_strerror;
  decltype(&::curl_slist_append) slist_append;
  decltype(&::curl_slist_free_all) slist_free_all;

  // Loads it with the first call. kUnavailable, with the package to install, where it is missing.
  static Result<const CurlLibrary*> load();
};

}  // namespace espalier::hub
