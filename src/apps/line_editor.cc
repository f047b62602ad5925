// libedit is loaded when a terminal is read: linking it would put it, and the terminal's database,
// into every program and into Python's wheels.
#include "apps/line_editor.h"

#include <dlfcn.h>
#include <histedit.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace espalier::apps {
namespace {

constexpr int kHistoryLines = 1000;

struct Libedit {
  decltype(&::el_init) el_init;
  decltype(&::el_end) el_end;
  decltype(&::el_set) el_set;
  decltype(&::el_gets) el_gets;
  decltype(&::el_line) el_line;
  decltype(&::el_insertstr) el_insertstr;
  decltype(&::el_get) el_get;
  decltype(&::history_init) history_init;
  decltype(&::history_end) history_end;
  decltype(&::history) history;
};

template <typename Function>
bool find(void* library, const char* name, Function& out) {
  out = reinterpret_cast<Function>(dlsym(library, name));
  return out != nullptr;
}

// Null where it is not installed.
const Libedit* load() {
  static const std::optional<Libedit> loaded = []() -> std::optional<Libedit> {
    void* const library = dlopen("libedit.so.2", RTLD_NOW | RTLD_LOCAL);
    Libedit edit{};
    if (library != nullptr && find(library, "el_init", edit.el_init) &&
        find(library, "el_end", edit.el_end) && find(library, "el_set", edit.el_set) &&
        find(library, "el_gets", edit.el_gets) && find(library, "el_line", edit.el_line) &&
        find(library, "el_insertstr", edit.el_insertstr) && find(library, "el_get", edit.el_get) &&
        find(library, "history_init", edit.history_init) &&
        find(library, "history_end", edit.history_end) && find(library, "history", edit.history))
      return edit;
    return std::nullopt;
  }();
  return loaded ? &*loaded : nullptr;
}

// Standard input as it comes, for pipes and where libedit is missing.
class PlainReader {
 public:
  std::optional<std::string> read() {
    while (true) {
      if (const size_t end = buffer_.find('\n'); end != std::string::npos) {
        std::string line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        return line;
      }
      char bytes[4096];
      const ssize_t count = ::read(STDIN_FILENO, bytes, sizeof bytes);
      if (count > 0) {
        buffer_.append(bytes, static_cast<size_t>(count));
      } else if (buffer_.empty() || (count < 0 && errno == EINTR)) {
        return std::nullopt;
      } else {
        return std::exchange(buffer_, {});
      }
    }
  }

 private:
  std::string buffer_;
};

}  // namespace

struct LineEditor::Impl {
  const Libedit* edit = nullptr;  // null: plain reads
  EditLine* line = nullptr;
  History* history = nullptr;
  std::filesystem::path history_file;
  std::vector<std::string> words;
  std::string prompt;
  PlainReader plain;

  void start();
  void set_history(int operation, const char* text = nullptr);
  static char* prompt_of(EditLine* line);
  static unsigned char complete(EditLine* line, int);
};

// The object that a callback of libedit belongs to.
char* LineEditor::Impl::prompt_of(EditLine* line) {
  void* self = nullptr;
  load()->el_get(line, EL_CLIENTDATA, &self);
  return static_cast<Impl*>(self)->prompt.data();
}

// The rest of the only word that begins as the line does.
unsigned char LineEditor::Impl::complete(EditLine* line, int) {
  void* self = nullptr;
  load()->el_get(line, EL_CLIENTDATA, &self);
  const LineInfo* const info = load()->el_line(line);
  const std::string typed(info->buffer, info->cursor);
  std::string rest;
  int num_found = 0;
  for (const std::string& word : static_cast<Impl*>(self)->words) {
    if (!word.starts_with(typed)) continue;
    ++num_found;
    rest = word.substr(typed.size());
  }
  if (num_found != 1 || typed.empty()) return CC_ERROR;
  rest += ' ';
  return load()->el_insertstr(line, rest.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
}

void LineEditor::Impl::set_history(int operation, const char* text) {
  HistEvent event{};
  text != nullptr ? edit->history(history, &event, operation, text)
                  : edit->history(history, &event, operation);
}

void LineEditor::Impl::start() {
  std::setlocale(LC_CTYPE, "");  // characters of several bytes
  line = edit->el_init("espalier", stdin, stdout, stderr);
  history = edit->history_init();
  HistEvent event{};
  edit->history(history, &event, H_SETSIZE, kHistoryLines);
  edit->history(history, &event, H_SETUNIQUE, 1);
  edit->el_set(line, EL_CLIENTDATA, this);
  edit->el_set(line, EL_PROMPT, prompt_of);
  edit->el_set(line, EL_EDITOR, "emacs");
  edit->el_set(line, EL_SIGNAL, 0);
  edit->el_set(line, EL_HIST, edit->history, history);
  edit->el_set(line, EL_ADDFN, "espalier-complete", "complete a command", complete);
  edit->el_set(line, EL_BIND, "^I", "espalier-complete", nullptr);
  edit->el_set(line, EL_BIND, "^R", "em-inc-search-prev", nullptr);
  // An end of input that is typed before the terminal is read byte by byte arrives as NUL. libedit
  // takes NUL for each special character that the terminal lacks, "insert the next one" among them,
  // so that the next end of input became part of the line and the line could not be ended.
  edit->el_set(line, EL_BIND, "^@", "ed-unassigned", nullptr);
  if (!history_file.empty()) set_history(H_LOAD, history_file.c_str());
}

LineEditor::LineEditor(const std::filesystem::path& history, std::vector<std::string> words)
    : impl_(std::make_unique<Impl>()) {
  impl_->history_file = history;
  impl_->words = std::move(words);
  if (isatty(STDIN_FILENO) == 1) impl_->edit = load();
  if (impl_->edit != nullptr) impl_->start();
}

LineEditor::~LineEditor() {
  if (impl_->edit == nullptr) return;
  impl_->edit->history_end(impl_->history);
  impl_->edit->el_end(impl_->line);
}

std::optional<std::string> LineEditor::read(const std::string& prompt) {
  if (impl_->edit == nullptr) {
    if (isatty(STDIN_FILENO) == 1) {
      std::fwrite(prompt.data(), 1, prompt.size(), stdout);
      std::fflush(stdout);
    }
    return impl_->plain.read();
  }
  impl_->prompt = prompt;
  int count = 0;
  errno = 0;
  const char* const text = impl_->edit->el_gets(impl_->line, &count);
  if (text == nullptr) return errno == EINTR ? std::optional<std::string>("") : std::nullopt;
  std::string line(text, static_cast<size_t>(count));
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
  return line;
}

// Saved at once, with the rights of a private file: what was said is the user's alone.
void LineEditor::remember(const std::string& text) {
  if (impl_->edit == nullptr || text.empty()) return;
  impl_->set_history(H_ENTER, text.c_str());
  if (impl_->history_file.empty()) return;
  std::error_code problem;
  std::filesystem::create_directories(impl_->history_file.parent_path(), problem);
  const mode_t before = ::umask(0077);
  impl_->set_history(H_SAVE, impl_->history_file.c_str());
  ::umask(before);
}

std::filesystem::path default_history_file() {
  const auto folder = [](const char* name) -> std::filesystem::path {
    const char* const value = std::getenv(name);
    return value != nullptr ? value : "";
  };
  std::filesystem::path state = folder("XDG_STATE_HOME");
  if (state.empty() && !folder("HOME").empty()) state = folder("HOME") / ".local/state";
  return state.empty() ? state : state / "espalier/chat_history";
}

}  // namespace espalier::apps
