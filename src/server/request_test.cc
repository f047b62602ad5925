// The parsers of bodies alone: mutated bodies, and the writer of JSON.
#include <gmock/gmock.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <cctype>
#include <cmath>
#include <cstdlib>

#include "base/rng.h"
#include "server/cache_namespace.h"
#include "server/dialects/llama_cpp_request.h"
#include "server/errors.h"
#include "server/json_writer.h"
#include "server/native_request.h"
#include "server/openai_request.h"
#include "server/routes.h"

namespace espalier::server {
namespace {

namespace json = boost::json;

json::value reparsed(std::string_view text) {
  json::error_code ec;
  json::value value = json::parse(json::string_view(text.data(), text.size()), ec);
  EXPECT_FALSE(ec) << ec.message() << " in " << text;
  return value;
}

TEST(JsonWriter, WritesWhatAParserReadsBack) {
  Rng rng(7);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (uint64_t n = rng.below(12); n > 0; --n) {
      const char* const pieces[] = {"a", "\"", "\\", "\n",   "\t",   "\r",
                                    "é", "漢", "😀",  "\x01", "\x7f", "/"};
      text += pieces[rng.below(std::size(pieces))];
      if (rng.below(8) == 0) text.push_back('\0');
    }
    const double number = std::ldexp(rng.normal(), static_cast<int>(rng.between(-60, 60)));
    const float small = static_cast<float>(rng.normal());
    const int64_t whole = static_cast<int64_t>(rng());
    std::string out;
    JsonWriter w(out);
    w.begin_object().member("number", number).member("text", text).member("small", small);
    w.member("whole", whole).key("list").begin_array().value(true).null().begin_object();
    w.end_object().value(text).end_array().member("last", "x").end_object();
    const json::value value = reparsed(out);
    ASSERT_EQ(value.at("text").get_string(), text);
    // Exact in the text; the parser itself is good to the last bit or two.
    ASSERT_EQ(std::strtod(out.c_str() + out.find("\"number\":") + 9, nullptr), number);
    ASSERT_DOUBLE_EQ(value.at("number").to_number<double>(), number);
    ASSERT_EQ(static_cast<float>(value.at("small").to_number<double>()), small);
    ASSERT_EQ(value.at("whole").to_number<int64_t>(), whole);
    ASSERT_EQ(value.at("list").get_array().size(), 4u);
  }
  std::string out;
  JsonWriter(out).begin_array().value(NAN).value(-INFINITY).value(1.0).end_array();
  EXPECT_EQ(out, "[null,null,1]");
}

TEST(JsonWriter, InvalidUtf8BecomesTheReplacementCharacter) {
  const auto written = [](std::string_view text) {
    std::string out;
    JsonWriter(out).value(text);
    return out;
  };
  for (const char* valid :
       {"a\u00e9\u20ac\U0001f600\U0010ffff\ud7ff\ue000", "\u0080\u0800\U00010000"})
    EXPECT_EQ(written(valid), fmt::format("\"{}\"", valid));
  const std::string r = "\xef\xbf\xbd";
  using Case = std::pair<std::string, std::string>;
  for (const auto& [text, expected] : {Case{"a\xff!", "a" + r + "!"},
                                       {"\xc3", r},                          // truncated
                                       {"\xe2\x82 ", r + r + " "},           // a byte is missing
                                       {"\xc0\xaf", r + r},                  // overlong
                                       {"\xed\xa0\x80", r + r + r},          // a surrogate
                                       {"\xf4\x90\x80\x80", r + r + r + r},  // beyond U+10FFFF
                                       {"\x80\"\n", r + "\\\"\\n"}}) {
    EXPECT_EQ(written(text), "\"" + expected + "\"");
    EXPECT_TRUE(parse_json(written(text))) << expected;
  }
  // Random bytes: what is written is always JSON, and valid parts stay.
  const uint64_t seed = 11;
  SCOPED_TRACE(seed);
  Rng rng(seed);
  for (int round = 0; round < 2000; ++round) {
    std::string text = "\u20ac";
    for (uint64_t n = rng.below(12); n > 0; --n) text += static_cast<char>(rng.below(256));
    const auto value = parse_json(written(text));
    ASSERT_TRUE(value) << value.error().to_string();
    ASSERT_THAT(value->get_string().c_str(), ::testing::StartsWith("\u20ac"));
  }
}

TEST(OpenApi, IsJsonWithASchemaForEachBody) {
  const json::value api = reparsed(openapi_json());
  for (const Route& route : routes()) {
    if (route.body_schema.empty()) continue;
    EXPECT_TRUE(api.at("components").at("schemas").get_object().contains(route.body_schema))
        << route.pattern;
  }
}

// A reader of JSON keeps one of two members with one name.
TEST(OpenApi, HasEveryMethodOfEveryPath) {
  const json::value api = reparsed(openapi_json());
  for (const Route& route : routes()) {
    std::string path = route.pattern;
    if (const size_t star = path.find("*}"); star != std::string::npos) path.erase(star, 1);
    for (std::string method : route.methods) {
      for (char& c : method) c = static_cast<char>(std::tolower(c));
      EXPECT_TRUE(api.at("paths").at(path).get_object().contains(method)) << method << " " << path;
    }
  }
}

// A value to put somewhere: of each kind, odd sizes included.
json::value random_value(Rng& rng, int depth = 0) {
  switch (rng.below(depth < 2 ? 10 : 7)) {
    case 0:
      return nullptr;
    case 1:
      return rng.below(2) == 0;
    case 2:
      return static_cast<int64_t>(rng.between(-3, 300));
    case 3:
      return static_cast<int64_t>(rng());
    case 4:
      return rng();
    case 5:
      return std::ldexp(rng.normal(), static_cast<int>(rng.between(-40, 140)));
    case 6:
      return json::string(rng.below(30), static_cast<char>('a' + rng.below(26)));
    case 7: {
      json::array list;
      for (uint64_t n = rng.below(4); n > 0; --n) list.push_back(random_value(rng, depth + 1));
      return list;
    }
    case 8:
      return json::array(rng.below(3), random_value(rng, depth + 1));
    default: {
      json::object object;
      const char* const keys[] = {"type", "role", "content", "text",  "n",
                                  "stop", "5",    "é",       "schema"};
      for (uint64_t n = rng.below(4); n > 0; --n) {
        object[keys[rng.below(std::size(keys))]] = random_value(rng, depth + 1);
      }
      return object;
    }
  }
}

// Replaces, removes or adds something somewhere inside.
void mutate(json::value& value, Rng& rng) {
  const bool replaced = rng.below(4) == 0;
  if (!replaced && value.is_object() && !value.get_object().empty()) {
    auto& object = value.get_object();
    auto member = object.begin() + static_cast<std::ptrdiff_t>(rng.below(object.size()));
    if (rng.below(8) == 0) {
      object.erase(member);
    } else {
      mutate(member->value(), rng);
    }
  } else if (!replaced && value.is_array() && !value.get_array().empty()) {
    auto& list = value.get_array();
    if (rng.below(8) == 0) {
      list.push_back(random_value(rng));
    } else {
      mutate(list[rng.below(list.size())], rng);
    }
  } else {
    value = random_value(rng);
  }
}

std::string mutate_bytes(std::string text, Rng& rng) {
  for (uint64_t n = 1 + rng.below(3); n > 0 && !text.empty(); --n) {
    const size_t at = rng.below(text.size());
    switch (rng.below(4)) {
      case 0:
        text[at] = static_cast<char>(rng.below(256));
        break;
      case 1:
        text.erase(at, 1 + rng.below(5));
        break;
      case 2:
        text.insert(at, text.substr(rng.below(text.size()), rng.below(20)));
        break;
      default:
        text.resize(at);
    }
  }
  return text;
}

constexpr const char* kBodies[] = {
    R"({"text":"a","sampling_params":{"max_new_tokens":5,"temperature":0.5,"stop":["x"],"n":1,
        "logit_bias":{"5":1.0},"stop_token_ids":[1,2]},"stream":true,"rid":"r","return_logprob":true,
        "logprob_start_len":0,"top_logprobs_num":2,"token_ids_logprob":[1,2],"image_data":null})",
    R"({"text":["a","b"],"sampling_params":[{"n":2},{"n":2}],"rid":["x","y"],"return_logprob":[true,false],
        "token_ids_logprob":[[1],[2,3]],"extra_key":["a","b"]})",
    R"({"input_ids":[[1,2],[3]],"sampling_params":{"stop":"a","regex":null},"cache_salt":"s"})",
    R"({"prompt":["a","b"],"max_tokens":5,"echo":true,"logprobs":2,"stream_options":{"include_usage":true},
        "response_format":{"type":"json_schema","json_schema":{"schema":{"type":"object"}}},"n":2})",
    R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"t"}]}],
        "max_completion_tokens":4,"logprobs":true,"top_logprobs":2,"tools":[],"tool_choice":"none",
        "chat_template_kwargs":{"a":1},"input_ids":null})",
    R"({"tokens":[[1,2],[3]],"skip_special_tokens":true})",
};

// What a parser gave must be sound; a refusal must have something to say.
template <typename Parsed, typename Check>
int check_result(const Parsed& parsed, bool malformed, Dialect dialect, Check check) {
  if (parsed) {
    check(*parsed);
    return 1;
  }
  EXPECT_FALSE(parsed.error().message().empty());
  const net::HttpResponse response =
      malformed ? malformed_response(parsed.error()) : error_response(dialect, parsed.error());
  EXPECT_EQ(response.status, 400) << parsed.error().to_string();
  EXPECT_TRUE(reparsed(response.body).is_object());
  return 0;
}

int parse_everything(const std::string& body) {
  int accepted = 0;
  bool malformed = false;
  const auto native = parse_native(body, malformed);
  accepted += check_result(native, malformed, Dialect::kNative, [](const NativeRequest& r) {
    ASSERT_FALSE(r.items.empty());
    for (const NativeItem& item : r.items) {
      ASSERT_EQ(item.request.sampling.n, r.items[0].request.sampling.n);
      ASSERT_GE(item.stream_interval.value_or(1), 1);
    }
    ASSERT_TRUE(r.is_list || r.items.size() == 1);
  });
  const auto completion = parse_completion(body, malformed);
  accepted += check_result(completion, malformed, Dialect::kOpenAi, [](const CompletionRequest& r) {
    ASSERT_FALSE(r.prompts.empty());
    ASSERT_TRUE(r.sampling.max_new_tokens.has_value());
    for (size_t i = 0; i < r.prompts.size(); ++i) (void)r.make_request(i, r.prompts.size());
  });
  const auto chat = parse_chat(body, malformed);
  accepted += check_result(chat, malformed, Dialect::kOpenAi, [](const ChatRequest& r) {
    ASSERT_TRUE(!r.input_ids.empty() || !r.messages->get_array().empty());
    (void)r.make_request(0, 1);
  });
  const auto tokenize = parse_tokenize(body, malformed);
  accepted += check_result(tokenize, malformed, Dialect::kOpenAi, [](const TokenizeRequest&) {});
  const auto detokenize = parse_detokenize(body, malformed);
  accepted +=
      check_result(detokenize, malformed, Dialect::kOpenAi, [](const DetokenizeRequest&) {});
  return accepted;
}

TEST(RequestFuzz, MutatedBodiesAreReadOrRefusedWithAReason) {
  const uint64_t seed = 20240608;
  const char* const rounds = std::getenv("ESPALIER_FUZZ_ROUNDS");
  const int num_rounds = rounds != nullptr ? std::atoi(rounds) : 20000;
  RecordProperty("seed", static_cast<int>(seed));
  Rng rng(seed);
  int accepted = 0;
  for (int i = 0; i < num_rounds && !::testing::Test::HasFailure(); ++i) {
    const char* const base = kBodies[rng.below(std::size(kBodies))];
    std::string body;
    if (rng.below(3) == 0) {
      body = mutate_bytes(base, rng);
    } else {
      json::value value = json::parse(base);
      for (uint64_t n = rng.below(3); n > 0; --n) mutate(value, rng);
      body = json::serialize(value);
    }
    SCOPED_TRACE(fmt::format("seed {} round {}: {}", seed, i, testing::PrintToString(body)));
    accepted += parse_everything(body);
  }
  EXPECT_GT(accepted, num_rounds / 10);  // the mutations reach beyond the first check
}

constexpr const char* kLlamaCppBody =
    R"({"prompt":[["a",1],"b",{"prompt_string":"c"}],"n_predict":5,"samplers":["top_k","min_p"],"top_p":0,
        "logit_bias":[[5,1.5],["x",false]],"stop":["x",""],"json_schema":{"type":"object"},"seed":-1,
        "mirostat":0,"response_fields":["content","generation_settings/seed"],"input_extra":[{"text":"t"}]})";

// Its settings are JSON, and its samplers are within the engine's ranges where these are clamped.
int check_llama_cpp(const Result<LlamaCppRequest>& parsed) {
  if (!parsed) {
    EXPECT_FALSE(parsed.error().message().empty());
    const int status = error_response(Dialect::kLlamaCpp, parsed.error()).status;
    EXPECT_TRUE(status == 400 || status == 501) << parsed.error().to_string();
    return 0;
  }
  const SamplingParams sampling = parsed->sampling();
  EXPECT_TRUE(*sampling.top_p > 0 && *sampling.top_p <= 1) << *sampling.top_p;
  EXPECT_TRUE(*sampling.top_k == -1 || *sampling.top_k > 0) << *sampling.top_k;
  EXPECT_GE(*sampling.temperature, 0);
  EXPECT_GE(parsed->n_probs, 0);
  std::string settings;
  JsonWriter w(settings);
  write_generation_settings(w, *parsed);
  EXPECT_TRUE(reparsed(settings).is_object());
  return 1;
}

TEST(RequestFuzz, MutatedBodiesOfLlamaCppAreReadOrRefused) {
  const uint64_t seed = 27;
  const char* const rounds = std::getenv("ESPALIER_FUZZ_ROUNDS");
  const int num_rounds = rounds != nullptr ? std::atoi(rounds) : 5000;
  Rng rng(seed);
  int accepted = 0;
  for (int i = 0; i < num_rounds && !::testing::Test::HasFailure(); ++i) {
    std::string body = kLlamaCppBody;
    if (rng.below(3) == 0) {
      body = mutate_bytes(body, rng);
    } else {
      json::value value = json::parse(body);
      for (uint64_t n = rng.below(3); n > 0; --n) mutate(value, rng);
      body = json::serialize(value);
    }
    SCOPED_TRACE(fmt::format("seed {} round {}: {}", seed, i, testing::PrintToString(body)));
    bool malformed = false;
    accepted += check_llama_cpp(parse_llama_cpp_completion(body, malformed));
    check_llama_cpp(parse_llama_cpp_infill(body, malformed));
  }
  EXPECT_GT(accepted, num_rounds / 10);
}

// Whatever key and salt two requests bring, in whichever dialect: they share a namespace exactly
// when both are equal.
TEST(CacheNamespace, DifferentKeysAndSaltsNeverMeet) {
  const std::string parts[] = {"",   "a",  "b",   "/",   "a/b",  "a/",
                               "/b", "\\", "a\\", "\\/", "\\/b", "//"};
  std::map<std::string, std::pair<std::string, std::string>> known;
  for (const std::string& key : parts) {
    for (const std::string& salt : parts) {
      const std::string name = cache_namespace(key, salt);
      const auto [place, added] = known.try_emplace(name, key, salt);
      ASSERT_TRUE(added) << "(" << key << ", " << salt << ") meets (" << place->second.first << ", "
                         << place->second.second << ") in " << name;
      json::object body{{"text", "x"}, {"extra_key", key}, {"cache_salt", salt}};
      bool malformed = false;
      const auto native = parse_native(json::serialize(body), malformed);
      ASSERT_TRUE(native) << native.error().to_string();
      EXPECT_EQ(native->items.at(0).request.extra_key, name);
      body = {{"prompt", "x"}, {"extra_key", key}, {"cache_salt", salt}};
      const auto openai = parse_completion(json::serialize(body), malformed);
      ASSERT_TRUE(openai) << openai.error().to_string();
      EXPECT_EQ(openai->make_request(0, 1).extra_key, name);
    }
  }
  EXPECT_EQ(cache_namespace("", ""), "");
}

// As deep as the schemas that grammars take.
// Where one room is given for a batch, prompts have the rooms from there on, as SGLang has it.
TEST(Bootstrap, FieldsReachTheEngine) {
  bool malformed = false;
  const auto native = parse_native(
      R"({"text":["a","b"],"bootstrap_host":"h","bootstrap_port":[1,null],"bootstrap_room":7})",
      malformed);
  ASSERT_TRUE(native) << native.error().to_string();
  ASSERT_EQ(native->items.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    const auto& bootstrap = native->items[i].request.bootstrap;
    ASSERT_TRUE(bootstrap);
    EXPECT_EQ(bootstrap->host, "h");
    EXPECT_EQ(bootstrap->port, i == 0 ? 1 : 8998);
    EXPECT_EQ(bootstrap->room, 7 + i);
  }
  const auto openai =
      parse_completion(R"({"prompt":"x","bootstrap_host":"h","bootstrap_room":[9]})", malformed);
  ASSERT_TRUE(openai) << openai.error().to_string();
  const auto bootstrap = openai->make_request(0, 1).bootstrap;
  ASSERT_TRUE(bootstrap);
  EXPECT_EQ(bootstrap->room, 9u);
  EXPECT_FALSE(parse_completion(R"({"prompt":"x","bootstrap_room":"y"})", malformed));
  const auto without = parse_completion(R"({"prompt":"x"})", malformed);
  EXPECT_FALSE(without->make_request(0, 1).bootstrap);
}

TEST(RequestFuzz, FiveHundredLevelsAreRead) {
  const int kLevels = 500;
  std::string schema = R"({"type":"null"})";
  for (int i = 2; i < kLevels; i += 2)
    schema = R"({"type":"object","properties":{"a":)" + schema + "}}";
  bool malformed = false;
  const auto chat = parse_chat(
      R"({"messages":[{"role":"user","content":"x"}],"response_format":{"type":"json_schema",)"
      R"("json_schema":{"name":"x","schema":)" +
          schema + "}}}",
      malformed);
  ASSERT_TRUE(chat) << chat.error().to_string();
  const auto native = parse_native(R"({"text":"x","sampling_params":{"json_schema":)" +
                                       json::serialize(json::string(schema)) + R"(},"unknown":)" +
                                       std::string(kLevels, '[') + std::string(kLevels, ']') + "}",
                                   malformed);
  ASSERT_TRUE(native) << native.error().to_string();
}

TEST(RequestFuzz, DeepNestingIsRefused) {
  bool malformed = false;
  const std::string deep =
      R"({"text":)" + std::string(100000, '[') + std::string(100000, ']') + "}";
  EXPECT_FALSE(parse_native(deep, malformed));
  EXPECT_TRUE(malformed);
}

}  // namespace
}  // namespace espalier::server
