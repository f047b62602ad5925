#include "grammar/schema/json_text.h"

#include <boost/json.hpp>

namespace espalier::grammar {

namespace json = boost::json;

Result<json::value> parse_json_text(std::string_view text, std::string_view what) {
  json::parse_options options;
  options.max_depth = kJsonDepthMax;
  json::stream_parser parser({}, options);
  boost::system::error_code failed;
  const size_t read = parser.write(text.data(), text.size(), failed);
  if (!failed) parser.finish(failed);
  if (!failed) return parser.release();
  if (failed == json::error::too_deep) {
    return fail(invalid_argument("{} nests deeper than {} values at byte {}; make it flatter", what,
                                 kJsonDepthMax, read));
  }
  return fail(
      invalid_argument("{} is not valid JSON: {} at byte {}", what, failed.message(), read));
}

}  // namespace espalier::grammar
