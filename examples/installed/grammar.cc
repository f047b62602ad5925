// The C++ interface: a date by a regular expression, with tokens of several bytes.
#include "espalier/grammar.h"
#include "espalier/version.h"

#include <cstdio>
#include <string>
#include <vector>

int main() {
  const std::vector<std::string> tokens = {"20", "26", "-", "11", "x", "1", "0", ""};
  const int32_t eos = 7;
  std::string error;
  auto vocabulary = espalier::Vocabulary::create(tokens, {}, {eos}, &error);
  if (!vocabulary) return std::fprintf(stderr, "%s\n", error.c_str()), 1;
  auto grammar = espalier::Grammar::regex(*vocabulary, "[0-9]{4}-[0-9]{2}", &error);
  if (!grammar) return std::fprintf(stderr, "%s\n", error.c_str()), 1;
  auto matcher = espalier::GrammarMatcher::create(*grammar, &error);
  if (!matcher) return std::fprintf(stderr, "%s\n", error.c_str()), 1;

  std::vector<uint32_t> mask;
  std::string text;
  for (const int32_t token : {0, 1, 2, 3}) {
    if (!matcher->fill_mask(mask) || (mask[0] >> 4 & 1) != 0 || !matcher->accept_token(token)) {
      return std::fprintf(stderr, "the mask is wrong behind '%s'\n", text.c_str()), 1;
    }
    text += tokens[static_cast<size_t>(token)];
  }
  if (!matcher->can_end() || !matcher->accept_token(eos) || !matcher->ended()) return 1;
  std::printf("%s, Espalier %s\n", text.c_str(), ESPALIER_VERSION_STRING);
  return 0;
}
