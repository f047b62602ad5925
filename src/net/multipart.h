// Bodies of forms that bring files: multipart/form-data (RFC 7578). A pure function.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace espalier::net {

struct FormPart {
  std::string name;
  std::string filename;      // empty: no file
  std::string_view content;  // of the body that was parsed
};

// content_type: of the request, with its boundary. kInvalidArgument says what is wrong with it, or
// with which part; at most 64 parts.
Result<std::vector<FormPart>> parse_form_data(std::string_view content_type, std::string_view body);

}  // namespace espalier::net
