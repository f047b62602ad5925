// libFuzzer: chat templates, compiled and rendered with a conversation.
#include "text/template/chat_template.h"

#include <boost/json.hpp>
#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  const auto made = espalier::ChatTemplate::compile(source);
  if (!made) return 0;
  static const boost::json::object variables =
      boost::json::parse(R"({"messages":[{"role":"system","content":"Be brief."},
        {"role":"user","content":"Hello \u00fc"}],"bos_token":"<s>","eos_token":"</s>",
        "add_generation_prompt":true,"tools":null})")
          .as_object();
  (void)made->render(variables, 0, 0.05);
  return 0;
}
