#include "text/parse/response_regions.h"

#include <algorithm>
#include <boost/json.hpp>
#include <utility>

namespace espalier {
namespace {

using Part = ResponseRegions::Part;

// Bytes of the character that begins with `lead`; 0: none begins so.
size_t character_bytes(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead < 0xE0) return 2;
  if (lead >= 0xE0 && lead < 0xF0) return 3;
  return lead >= 0xF0 && lead < 0xF5 ? 4 : 0;
}

// Of a character with as many bytes as its lead says: no surrogate, not beyond the last code point,
// and no shorter form of it.
bool is_character(std::string_view bytes) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  for (size_t i = 1; i < bytes.size(); ++i)
    if ((byte(i) & 0xC0) != 0x80) return false;
  if (byte(0) == 0xE0) return byte(1) >= 0xA0;
  if (byte(0) == 0xED) return byte(1) < 0xA0;
  if (byte(0) == 0xF0) return byte(1) >= 0x90;
  return byte(0) != 0xF4 || byte(1) < 0x90;
}

ResponseScope scope_of(std::vector<std::pair<std::string, std::string>> groups) {
  ResponseScope scope;
  for (auto& [name, text] : groups)
    scope.emplace_back(std::move(name), boost::json::string(text.data(), text.size()));
  return scope;
}

class ResponseTemplateCalls final : public ToolCallParser {
 public:
  ResponseTemplateCalls(std::shared_ptr<const ResponseTemplate> spec,
                        std::shared_ptr<const boost::json::value> tools)
      : regions_(spec), tools_(std::move(tools)) {
    const ResponseField* const text = spec->find(ResponseField::Role::kText);
    strips_ = text == nullptr || text->content.strip;
  }

 private:
  void take(char c) override {
    regions_.push({&c, 1}, parts_);
    read_parts();
  }

  void end() override {
    regions_.finish(parts_);
    read_parts();
    if (field_ != nullptr) end_field({});
    if (strips_) drop_space();
  }

  void read_parts() {
    for (Part& part : std::exchange(parts_, {})) {
      if (part.field == nullptr || part.field->role == ResponseField::Role::kText) {
        if (part.kind == Part::Kind::kText) {
          emit_stripped(part.text);
        } else {
          at_start_ = true;
        }
      } else if (part.field->role == ResponseField::Role::kReasoning) {
        emit_text(part.text);  // with its delimiters: nobody has taken it out
      } else if (part.kind == Part::Kind::kOpen) {
        field_ = part.field;
        raw_ = std::move(part.text);
        groups_ = std::move(part.groups);
        body_.clear();
      } else if (part.kind == Part::Kind::kText) {
        body_ += part.text;
      } else {
        groups_.insert(groups_.end(), part.groups.begin(), part.groups.end());
        end_field(part.text);
      }
    }
  }

  // White space at a text's end is pending in the base class until more text follows.
  void emit_stripped(std::string_view text) {
    if (strips_ && at_start_) {
      const size_t begin = text.find_first_not_of(" \t\n\r");
      if (begin == std::string_view::npos) return;
      text.remove_prefix(begin);
    }
    at_start_ = false;
    emit_text(text);
  }

  void end_field(std::string_view close) {
    const auto calls = read_response_calls(*std::exchange(field_, nullptr), body_,
                                           std::exchange(groups_, {}), tools_.get());
    at_start_ = static_cast<bool>(calls);
    if (!calls) {
      emit_text(raw_);
      emit_text(body_);
      emit_text(close);
      return;
    }
    if (!strips_) keep_space();
    for (const ResponseCall& call : *calls) {
      begin_call(call.name);
      emit_arguments(call.arguments);
    }
  }

  ResponseRegions regions_;
  bool strips_ = true;    // white space around texts is dropped
  bool at_start_ = true;  // of a text
  const std::shared_ptr<const boost::json::value> tools_;
  std::vector<Part> parts_;               // scratch
  const ResponseField* field_ = nullptr;  // of calls, which is open
  std::string raw_, body_;                // its delimiter, and what follows
  ResponseScope groups_;
};

}  // namespace

ResponseRegions::ResponseRegions(std::shared_ptr<const ResponseTemplate> spec)
    : spec_(std::move(spec)) {
  for (const ResponseField& field : spec_->fields) {
    if (field.open) watched_.push_back({&field, true, PcreRegex::Search(field.open->regex, {})});
    if (field.close) watched_.push_back({&field, false, PcreRegex::Search(field.close->regex, {})});
  }
}

std::vector<Part> ResponseRegions::begin_behind(std::string_view begun_answer) {
  std::vector<Part> parts;
  push(begun_answer, parts);
  prompt_bytes_ = text_.size();
  const auto open = std::find_if(parts.rbegin(), parts.rend(),
                                 [](const Part& part) { return part.kind == Part::Kind::kOpen; });
  if (explicit_ == nullptr || open == parts.rend()) return {};
  parts.erase(parts.begin(), std::prev(open.base()));
  return parts;
}

void ResponseRegions::push(std::string_view text, std::vector<Part>& out) {
  for (const char c : text) {
    incomplete_ += c;
    const size_t wanted = character_bytes(static_cast<unsigned char>(incomplete_[0]));
    const bool goes_on = (static_cast<unsigned char>(c) & 0xC0) == 0x80 || incomplete_.size() == 1;
    if (goes_on && incomplete_.size() < wanted) continue;
    add_character(std::exchange(incomplete_, {}));
    process(false, out);
  }
}

void ResponseRegions::add_character(std::string_view character) {
  text_ += character;
  const size_t wanted = character_bytes(static_cast<unsigned char>(character[0]));
  if (character.size() == wanted && is_character(character)) {
    scanned_ += character;
    return;
  }
  for (const char c : character)  // none of them, unless a next one begins at the last
    scanned_ += static_cast<unsigned char>(c) < 0x80 ? c : '\x1A';
}

void ResponseRegions::finish(std::vector<Part>& out) {
  if (!incomplete_.empty()) add_character(std::exchange(incomplete_, {}));
  process(true, out);
}

bool ResponseRegions::is_watched(const Watched& watched) const {
  if (explicit_ != nullptr) return !watched.is_open && watched.field == explicit_;
  return watched.is_open || watched.field == spec_->implicit;
}

// The first delimiter that what follows cannot change, if it begins before all that it could;
// `pending_from` is where the first one begins that it could.
std::optional<ResponseRegions::Found> ResponseRegions::search(bool ended, size_t& pending_from) {
  std::optional<Found> best;
  pending_from = scanned_.size();
  for (Watched& watched : watched_) {
    if (!is_watched(watched)) continue;
    watched.search.set_text(scanned_);
    PcreRegex::Search::Growing found;
    if (ended) {
      const auto match = watched.search.find(position_);
      if (!match) continue;
      found.match = *match;
    } else {
      const auto growing = watched.search.find_growing(position_);
      if (!growing) continue;
      found = *growing;
    }
    if (found.may_change) {
      pending_from = std::min(pending_from, found.match.begin);
      continue;
    }
    const auto [begin, end] = found.match;
    // A field may end without characters, which is followed by more than that.
    if (end - begin > kDelimiterBytesMax || (begin == end && explicit_ == nullptr)) continue;
    if (!best || begin < best->match.begin || (begin == best->match.begin && end > best->match.end))
      best = Found{&watched, found.match};
  }
  if (best && best->match.begin >= pending_from && !ended) best.reset();
  return best;
}

void ResponseRegions::process(bool ended, std::vector<Part>& out) {
  for (;;) {
    size_t pending_from = 0;
    const auto found = search(ended, pending_from);
    if (found) {
      emit_text(found->match.begin, out);
      emit_delimiter(*found, out);
      continue;
    }
    if (scanned_.size() - pending_from > kDelimiterBytesMax) {
      do {  // one character is certain to be text
        ++pending_from;
      } while ((static_cast<unsigned char>(scanned_[pending_from]) & 0xC0) == 0x80);
      emit_text(pending_from, out);
      continue;
    }
    emit_text(pending_from, out);
    return;
  }
}

void ResponseRegions::emit_text(size_t end, std::vector<Part>& out) {
  const size_t begin = std::exchange(position_, end);
  const size_t shown = std::max(begin, std::min(end, prompt_bytes_));
  if (shown == end) return;
  const ResponseField* const field = explicit_ != nullptr ? explicit_ : spec_->implicit;
  if (!out.empty() && out.back().kind == Part::Kind::kText && out.back().field == field) {
    out.back().text.append(text_, shown, end - shown);
    return;
  }
  out.push_back({Part::Kind::kText, field, text_.substr(shown, end - shown), {}});
}

void ResponseRegions::emit_delimiter(const Found& found, std::vector<Part>& out) {
  const auto [begin, end] = found.match;
  position_ = end;
  out.push_back({found.watched->is_open ? Part::Kind::kOpen : Part::Kind::kClose,
                 found.watched->field, text_.substr(begin, end - begin),
                 scope_of(found.watched->search.named_groups())});
  explicit_ = found.watched->is_open ? found.watched->field : nullptr;
}

std::unique_ptr<ToolCallParser> make_response_template_calls(
    std::shared_ptr<const ResponseTemplate> spec, std::shared_ptr<const boost::json::value> tools) {
  return std::make_unique<ResponseTemplateCalls>(std::move(spec), std::move(tools));
}

}  // namespace espalier
