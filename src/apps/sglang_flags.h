// Server flags of SGLang that have no setting of that name here. Launch lines written for SGLang
// start unchanged where the flag asks for nothing that Espalier lacks: such a flag is accepted and
// noted; any other is refused with advice. Pure functions over a constant table; thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/settings.h"
#include "base/status.h"

namespace espalier::apps {

// One flag of SGLang's server and what `espalier serve` does with it.
struct SglangFlag {
  enum class Rule {
    kNoEffect,   // accepted with any value: Espalier decides the matter itself
    kOnlyValue,  // accepted where the value asks for what Espalier does, else refused
    kRefused,    // asks for something that Espalier does not have
  };
  std::string_view name;  // "tp-size"
  Rule rule = Rule::kNoEffect;
  bool takes_value = false;   // one or more words follow the flag
  std::string_view accepted;  // kOnlyValue: values that are accepted, separated by '|'
  std::string_view reason;    // why it has no effect, or what to do instead
};

// Null for a name that SGLang does not have either, or that is a setting of Espalier.
const SglangFlag* find_sglang_flag(std::string_view name);

// All of them, ordered by name.
std::vector<SglangFlag> sglang_flags();

// The page docs/sglang_flags.md: a table of all of them.
std::string sglang_flags_markdown();

// The command line without flags of SGLang, and a note for each that was taken out.
struct SglangArguments {
  std::vector<std::string> rest;
  std::vector<std::string> notes;  // "--attention-backend has no effect: ..."
};

// Takes SGLang's flags with their values out of `args`; settings of `table` stay. A beginning that
// one flag alone has stands for it, as in SGLang; `rest` has its whole name. Fails with
// kInvalidArgument, which names the flag and what to do, for a flag that is refused and for a
// beginning of several.
Result<SglangArguments> take_sglang_flags(const std::vector<std::string>& args,
                                          const SettingTable& table);

}  // namespace espalier::apps
