// A tokenizer behind a pipe, for the comparison scripts of tests/compat/text/:
//   text_tokenize FILE < requests
// A request is a line of JSON: {"text": "...", "special": true} gives ids (or "hex": "ff00" for a
// text of any bytes), {"pair": "...", "text": "...", "max": 8} gives ids and types of both (max 0:
// all), {"ids": [...], "skip": true} gives text, each as a line of JSON. With --time,
// encodes a file's text again and again.
#include <boost/json.hpp>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iostream>
#include <iterator>

#include "text/tokenizer/tokenizer.h"

namespace {

namespace json = boost::json;
using Clock = std::chrono::steady_clock;

double milliseconds(Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

std::string bytes_of_hex(std::string_view hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  }
  return bytes;
}

void answer(const espalier::Tokenizer& tokenizer, const json::value& request) {
  if (const json::value* pair = request.as_object().if_contains("pair")) {
    const std::string second(pair->is_null() ? "" : std::string_view(pair->as_string()));
    const espalier::TypedIds typed =
        tokenizer.encode_typed(request.at("text").as_string(), pair->is_null() ? nullptr : &second,
                               static_cast<size_t>(request.at("max").as_int64()));
    const json::array both = {json::value_from(typed.ids), json::value_from(typed.types)};
    std::cout << json::serialize(both) << '\n';
    return;
  }
  if (const json::value* special = request.as_object().if_contains("special")) {
    const json::value* hex = request.as_object().if_contains("hex");
    const std::string text = hex != nullptr ? bytes_of_hex(hex->as_string())
                                            : std::string(request.at("text").as_string());
    const auto ids = tokenizer.encode(text, {.add_special_tokens = special->as_bool()});
    std::cout << json::serialize(json::value_from(ids)) << '\n';
  } else {
    const auto ids = json::value_to<std::vector<espalier::TokenId>>(request.at("ids"));
    const std::string decoded =
        tokenizer.decode(ids, {.skip_special_tokens = request.at("skip").as_bool()});
    std::cout << json::serialize(json::value(decoded)) << '\n';
  }
}

// Processor time of this thread, which other load on the system does not change.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// How long loading took, by the clock and in processor time.
struct LoadTime {
  double ms, cpu_ms;
};

// One JSON object: what loading took, and the best and the first of `rounds`.
void time_encode(const espalier::Tokenizer& tokenizer, LoadTime load, const char* path,
                 int rounds) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  double first = 0, best = 1e9;
  std::vector<espalier::TokenId> ids;
  for (int round = 0; round < rounds; ++round) {
    const double start = thread_seconds();
    ids = tokenizer.encode(text, {.add_special_tokens = false});
    const double seconds = thread_seconds() - start;
    if (round == 0) first = seconds;
    best = std::min(best, seconds);
  }
  std::cout << json::serialize(json::object{{"load_ms", load.ms},
                                            {"load_cpu_ms", load.cpu_ms},
                                            {"first_seconds", first},
                                            {"seconds", best},
                                            {"ids", json::value_from(ids)}})
            << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: text_tokenize FILE [--time TEXT_FILE ROUNDS]\n";
    return 2;
  }
  const auto start = Clock::now();
  const auto tokenizer = espalier::load_tokenizer(argv[1]);
  if (!tokenizer) {
    std::cerr << tokenizer.error().to_string() << '\n';
    return 1;
  }
  if (argc == 5 && std::string_view(argv[2]) == "--time") {
    const LoadTime load = {milliseconds(Clock::now() - start),
                           1000.0 * std::clock() / CLOCKS_PER_SEC};
    time_encode(**tokenizer, load, argv[3], std::atoi(argv[4]));
    return 0;
  }
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) {
    answer(**tokenizer, json::parse(line));
  }
  return 0;
}
