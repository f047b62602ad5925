// Takes prompts out of a request's body and leaves its shape, so that a log of requests can be
// replayed with texts of the same lengths.
#pragma once

#include <boost/json/value.hpp>

namespace espalier::server {

// What stands in place of what was taken out, as the only member of an object: a text of so many
// bytes, a list of so many token ids, and JSON of so many bytes (schemas, tools, pictures), which
// has no likeness that a replay could send.
inline constexpr const char kRedactedText[] = "$bytes";
inline constexpr const char kRedactedIds[] = "$ids";
inline constexpr const char kRedactedJson[] = "$json";

// Every text is taken out but short plain words of fields whose values an API names (model, role,
// type ...); every list with a number but stop_token_ids; and what clients name members in
// (schemas, tools and their arguments, metadata). Other numbers, switches and the names of fields
// stay.
void redact(boost::json::value& body);

}  // namespace espalier::server
