// Which model a request names. Pure functions, internal to the room.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "net/http.h"

namespace espalier::server {

// ?model=, else the top-level member "model" of a JSON body, else the part of that name of a form.
// Below /api/ (Ollama's) "name" is read where a JSON body has no "model".
// "": it names none, or is no such body, of which its handler reports what is wrong. Reads a JSON
// body as far as that member without a tree of it.
std::string requested_model(const net::HttpRequest& request);

}  // namespace espalier::server
