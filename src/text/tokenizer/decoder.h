// The "decoder" of a tokenizer.json: turns the strings of tokens back into text, as a stream.
#pragma once

#include <boost/json/fwd.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace espalier {

class JsonFields;

// One stage of a decoder chain in progress. It takes tokens and passes text to `emit`. A stage
// delays only the text that later tokens can change. Not thread-safe.
class DecodeStage {
 public:
  using Emit = std::function<void(std::string_view)>;
  virtual ~DecodeStage() = default;
  virtual std::unique_ptr<DecodeStage> clone() const = 0;
  virtual void push(std::string_view token, const Emit& emit) = 0;
  virtual void finish(const Emit&) {}
};

// Immutable; thread-safe.
class Decoder {
 public:
  // `value`: a decoder object of tokenizer.json, at `path` in it, or null (tokens are joined by
  // spaces). kUnimplemented names what is not supported.
  static Result<Decoder> parse(const boost::json::value& value, const std::string& path);

  // Whether ByteLevel is the only stage, so that tokens decode to bytes independently.
  bool byte_level_only() const { return byte_level_only_; }

  // A running decode.
  class Stream {
   public:
    Stream() = default;
    Stream(const Stream& other);  // goes on by itself
    Stream(Stream&&) noexcept = default;
    Stream& operator=(Stream&&) noexcept = default;
    ~Stream() = default;
    void push(std::string_view token, std::string& out) { push_to(0, token, out); }
    void finish(std::string& out);

   private:
    friend class Decoder;
    void push_to(size_t stage, std::string_view token, std::string& out);
    std::vector<std::unique_ptr<DecodeStage>> stages_;
  };
  Stream stream() const;

  // The bytes that a token stands for within a text (not at its start).
  std::string bytes_within_text(std::string_view token) const;

 private:
  using MakeStage = std::function<std::unique_ptr<DecodeStage>()>;
  // Add the stages of a decoder object of tokenizer.json, at `path` in it.
  Status add(const boost::json::value& value, const std::string& path);
  Status add_strip(const JsonFields& fields, const std::string& path);
  Status add_replace(const boost::json::value& value, const std::string& path);
  Status add_metaspace(const JsonFields& fields, const std::string& path);
  Status add_word_piece(const JsonFields& fields);
  Status add_suffix(const JsonFields& fields, const std::string& path);

  std::vector<MakeStage> stages_;
  std::vector<std::function<std::string(std::string)>> replacements_;  // for bytes_within_text
  bool byte_fallback_ = false;
  bool fused_ = false;  // while parsing: the stages so far make one string
  bool byte_level_ = false;
  bool byte_level_only_ = false;
};

}  // namespace espalier
