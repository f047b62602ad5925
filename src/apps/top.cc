// espalier top: a running server, on the terminal.
#include "apps/top.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <atomic>
#include <boost/json.hpp>
#include <cstdio>

#include "apps/command_line.h"
#include "apps/commands.h"
#include "net/client.h"

namespace espalier::apps {
namespace {

std::atomic<bool> end_requested{false};

// The terminal while the picture is on it: another screen without a cursor, and keys as they are
// pressed. Gives everything back at its end.
class Screen {
 public:
  Screen() {
    ::tcgetattr(STDIN_FILENO, &before_);
    termios raw = before_;
    raw.c_lflag &= static_cast<tcflag_t>(~(ICANON | ECHO));
    ::tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    put("\x1b[?1049h\x1b[?25l");
  }
  ~Screen() {
    put("\x1b[?25h\x1b[?1049l");
    ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  static void put(std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }
  // Each line is drawn over the one before, so nothing flickers.
  static void draw(const std::vector<std::string>& lines) {
    std::string out = "\x1b[H";
    for (size_t i = 0; i < lines.size(); ++i)
      out += lines[i] + (i + 1 < lines.size() ? "\x1b[K\r\n" : "\x1b[K");
    put(out + "\x1b[J");
  }

 private:
  termios before_{};
};

struct TopOptions {
  std::string url = "http://127.0.0.1:30000";
  std::string api_key;
  double interval = 1.0;  // seconds
  bool once = false;
};

class Watcher {
 public:
  Watcher(net::HttpClient client, std::string url) : client_(std::move(client)) {
    view_.url = std::move(url);
  }

  TopView& view() { return view_; }

  Status read() {
    TopReading now;
    ESP_ASSIGN_OR_RETURN(const net::HttpResponse metrics, client_.get("/metrics"));
    if (metrics.status != 200)
      return error(StatusCode::kUnavailable, "{} answers GET /metrics with {}: is it Espalier?",
                   view_.url, metrics.status);
    now.at = SteadyClock().now();
    now.metrics = parse_metrics(metrics.body);
    now.gpus = parse_gpus(metrics.body);
    ESP_ASSIGN_OR_RETURN(const net::HttpResponse requests, client_.get("/requests"));
    if (requests.status == 200) {
      ESP_ASSIGN_OR_RETURN(now.requests, parse_requests(requests.body));
    } else {
      now.requests_hidden = requests.status == 404
                                ? "this server does not list its requests"
                                : "requests are shown with the administrator's key: --api-key";
    }
    if (view_.model.empty()) ESP_RETURN_IF_ERROR(read_model());
    const double seconds = has_now_ ? to_seconds(now.at - now_.at) : 0;
    constexpr std::string_view kOutput = "sglang:generation_tokens_total";
    if (seconds > 0)
      throughput_.push_back(std::max(0.0, now.metric(kOutput) - now_.metric(kOutput)) / seconds);
    if (throughput_.size() > kKept) throughput_.erase(throughput_.begin());
    before_ = std::move(now_);
    has_before_ = has_now_;
    now_ = std::move(now);
    has_now_ = true;
    return {};
  }

  std::vector<std::string> draw() const {
    return draw_top(view_, now_, has_before_ ? &before_ : nullptr, throughput_);
  }

 private:
  static constexpr size_t kKept = 512;

  Status read_model() {
    ESP_ASSIGN_OR_RETURN(const net::HttpResponse models, client_.get("/v1/models"));
    boost::system::error_code wrong;
    const boost::json::value value = boost::json::parse(models.body, wrong);
    const boost::json::value* const name =
        wrong ? nullptr : value.find_pointer("/data/0/id", wrong);
    view_.model =
        name != nullptr && name->is_string() ? std::string(name->get_string()) : "(no key)";
    return {};
  }

  net::HttpClient client_;
  TopView view_;
  TopReading now_, before_;
  bool has_now_ = false, has_before_ = false;
  std::vector<double> throughput_;
};

void fit(TopView& view) {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return;
  view.width = size.ws_col;
  view.height = size.ws_row;
}

// The key that was pressed within so long; 0: none, or a signal came.
char wait_for_key(double seconds) {
  pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  const int ready = ::poll(&input, 1, static_cast<int>(seconds * 1e3));
  char key = 0;
  if (ready <= 0 || ::read(STDIN_FILENO, &key, 1) != 1) return 0;
  return key;
}

void handle_signals() {
  struct sigaction action {};
  action.sa_handler = [](int) { end_requested = true; };
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(number, &action, nullptr);
  action.sa_handler = [](int) {};  // it ends the wait for a key, so the picture is drawn anew
  ::sigaction(SIGWINCH, &action, nullptr);
}

int watch(Watcher& watcher, double interval) {
  handle_signals();
  const Screen screen;
  const SteadyClock clock;
  TimePoint due = clock.now();
  while (!end_requested) {
    if (clock.now() >= due && !watcher.view().paused) {
      const Status status = watcher.read();
      watcher.view().problem = status.ok() ? "" : status.message();
      due = clock.now() +
            std::chrono::duration_cast<Duration>(std::chrono::duration<double>(interval));
    }
    fit(watcher.view());
    Screen::draw(watcher.draw());
    const double left = watcher.view().paused ? interval : to_seconds(due - clock.now());
    const char key = wait_for_key(std::max(0.01, left));
    if (key == 'q' || key == 'Q' || key == 4) break;
    if (key == 'p' || key == ' ') watcher.view().paused = !watcher.view().paused;
  }
  return kExitOk;
}

// Two readings, so that there are rates, and no escape sequences.
int print_once(Watcher& watcher, double interval) {
  watcher.view().colours = false;
  watcher.view().width = 120;
  watcher.view().height = 40;
  fit(watcher.view());
  for (int i = 0; i < 2; ++i) {
    if (i > 0) ::usleep(static_cast<useconds_t>(interval * 1e6));
    if (const Status status = watcher.read(); !status.ok()) return report(status, kExitFailure);
  }
  for (const std::string& line : watcher.draw()) fmt::print("{}\n", line);
  return kExitOk;
}

}  // namespace

int run_top(const std::vector<std::string>& args) {
  TopOptions options;
  SettingTable table;
  table.group("Server");
  table.text("url", options.url, "URL", "the server that is watched");
  table.text("api-key", options.api_key, "KEY",
             "its key; the administrator's also shows the requests");
  table.group("Output");
  table.number("interval", options.interval, 0.1, 3600, "seconds between two readings");
  table.toggle("once", options.once,
               "print one picture and end, as on a standard output that is no "
               "terminal");
  CommandLine command{
      "espalier top",
      "Watches a running server: requests, tokens, cache, queue and GPUs. Keys: q ends, p "
      "pauses.",
      "Examples:\n"
      "  espalier top\n"
      "  espalier top --url https://models.example.org --api-key $KEY",
      "",
      {}};
  if (const auto exit_code = parse_command_line(command, table, SettingTable(), args))
    return *exit_code;
  net::HttpClientConfig config{.connect_timeout = std::chrono::seconds(5),
                               .read_timeout = std::chrono::seconds(10)};
  if (!options.api_key.empty())
    config.headers.emplace_back("Authorization", "Bearer " + options.api_key);
  auto client = net::HttpClient::create(options.url, std::move(config));
  if (!client) return report(client.error(), kExitUsage);
  Watcher watcher(std::move(*client), options.url);
  const bool terminal = ::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1;
  if (options.once || !terminal) return print_once(watcher, options.interval);
  // An error of the first reading is the command's; later ones are shown, and reading goes on.
  if (const Status status = watcher.read(); !status.ok()) return report(status, kExitFailure);
  return watch(watcher, options.interval);
}

}  // namespace espalier::apps
