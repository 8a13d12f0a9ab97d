#include "formats/open.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/system.h"

namespace nnue::data {
namespace {

[[noreturn]] void fail(const std::string& path, const char* what) {
    throw FormatError(path + ": " + what + ": " + std::strerror(errno));
}

}  // namespace

std::unique_ptr<PositionReader> open_reader(const std::string& path, const ReadOptions& options) {
    return open_reader(ByteStream(path, open_file_source(path)), options);
}

const DataFormat& format_of_suffix(std::string_view path) {
    std::string suffixes;
    for (const DataFormat* format : formats()) {
        if (!format->open_writer) continue;
        if (path.ends_with(format->suffix)) return *format;
        suffixes += (suffixes.empty() ? "" : ", ") + std::string(format->suffix);
    }
    throw FormatError(std::string(path) + ": no format has this suffix, expected one of " + suffixes);
}

// A new file beside its place, which goes unless it is moved there.
class FileWriter::Temporary {
  public:
    explicit Temporary(std::string path) : path_(std::move(path)), file_(system::create_beside(path_, made_)) {
        if (!file_) fail(path_, "cannot be created");
    }
    ~Temporary() {
        if (file_) std::remove(made_.c_str());
    }
    Temporary(const Temporary&) = delete;
    Temporary& operator=(const Temporary&) = delete;

    int fd() const { return file_.descriptor(); }
    void keep() {
        if (!system::sync(file_)) fail(path_, "cannot be written");
        if (std::rename(made_.c_str(), path_.c_str()) != 0) fail(path_, "cannot be replaced");
        file_.close();
    }

  private:
    std::string path_, made_;
    system::File file_;
};

FileWriter::FileWriter(const std::string& path, std::string_view format, const WriterOptions& options) {
    const DataFormat& chosen = format.empty() ? format_of_suffix(path) : find_format(format);
    file_ = std::make_unique<Temporary>(path);
    writer_ = open_writer(chosen.name, path, file_->fd(), options);
}

FileWriter::~FileWriter() = default;

void FileWriter::write(std::span<const Record> records) {
    if (!file_) throw FormatError("a file was written to after finish()");
    writer_->write(records);
}

void FileWriter::finish() {
    if (!file_) return;
    writer_->finish();
    file_->keep();
    file_.reset();
}

const DataFormat& FileWriter::format() const {
    return writer_->format();
}

std::uint64_t FileWriter::positions() const {
    return writer_->positions();
}

const Losses& FileWriter::losses() const {
    return writer_->losses();
}

}  // namespace nnue::data
