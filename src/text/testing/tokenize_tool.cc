// A tokenizer behind a pipe, for the comparison scripts of tests/compat/text/:
//   text_tokenize FILE < requests
// A request is a line of JSON: {"text": "...", "special": true} gives ids, {"ids": [...], "skip":
// true} gives text, each as a line of JSON. With --time, reads a text and tells how long it took.
#include <boost/json.hpp>
#include <chrono>
#include <iostream>
#include <iterator>

#include "text/tokenizer/tokenizer.h"

namespace {

namespace json = boost::json;
using Clock = std::chrono::steady_clock;

double milliseconds(Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

void answer(const espalier::Tokenizer& tokenizer, const json::value& request) {
  if (const json::value* text = request.as_object().if_contains("text")) {
    const auto ids = tokenizer.encode(std::string_view(text->as_string()),
                                      {.add_special_tokens = request.at("special").as_bool()});
    std::cout << json::serialize(json::value_from(ids)) << '\n';
  } else {
    const auto ids = json::value_to<std::vector<espalier::TokenId>>(request.at("ids"));
    const std::string decoded =
        tokenizer.decode(ids, {.skip_special_tokens = request.at("skip").as_bool()});
    std::cout << json::serialize(json::value(decoded)) << '\n';
  }
}

void time_encode(const espalier::Tokenizer& tokenizer) {
  const std::string text(std::istreambuf_iterator<char>(std::cin), {});
  for (int round = 0; round < 3; ++round) {
    const auto start = Clock::now();
    const size_t num_tokens = tokenizer.encode(text).size();
    const double ms = milliseconds(Clock::now() - start);
    std::cout << text.size() << " bytes, " << num_tokens << " tokens, " << ms << " ms, "
              << static_cast<double>(text.size()) / ms / 1000 << " MB/s\n";
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: text_tokenize FILE [--time]\n";
    return 2;
  }
  const auto start = Clock::now();
  const auto tokenizer = espalier::load_tokenizer(argv[1]);
  if (!tokenizer) {
    std::cerr << tokenizer.error().to_string() << '\n';
    return 1;
  }
  if (argc > 2 && std::string_view(argv[2]) == "--time") {
    std::cout << "loaded in " << milliseconds(Clock::now() - start) << " ms\n";
    time_encode(**tokenizer);
    return 0;
  }
  for (std::string line; std::getline(std::cin, line);) {
    answer(**tokenizer, json::parse(line));
  }
  return 0;
}
