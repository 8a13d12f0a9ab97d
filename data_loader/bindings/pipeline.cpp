// The part of nnue_trainer._data for training: data files and the pipeline.
//
// A pipeline's threads write into arrays of Python and may call a filter in Python, so they must end before the
// interpreter does, whatever the program left open. Every pipeline is therefore listed here, and a function that is
// registered with atexit ends them all. What is not atomic in this file is guarded by the interpreter's lock.
#include "pipeline/pipeline.h"

#include <cxxabi.h>

#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <thread>

#include "base/system.h"
#include "bindings/structs.h"
#include "formats/position_file.h"

namespace {

using namespace std::chrono_literals;

// --- data files ------------------------------------------------------------------------------------------------------

struct DataFile {
    std::shared_ptr<const PositionFile> positions;
    std::shared_ptr<Contents> contents;

    // `poll` is called beside the check of signals, which does nothing outside of the main thread; what it raises ends
    // the call.
    DataFile(const InputFile& file, bool skip_bad, const std::optional<py::function>& poll,
             const ReadSettings& settings, const ScoreChanges& changes,
             const std::optional<std::pair<std::string, std::string>>& layout) {
        const py::gil_scoped_release release;
        OpenOptions options;
        FileLayout known;
        if (layout) {
            known = {layout->first, {layout->second.begin(), layout->second.end()}};
            options.layout = &known;
        }
        options.on_bad = skip_bad ? OnBad::kSkip : OnBad::kError;
        options.settings = settings;
        options.changes = changes;
        options.poll = [&poll] {
            check_signals();
            const py::gil_scoped_acquire acquire;
            if (poll) (*poll)();
        };
        positions = open_position_file(file, options);
        contents = std::make_shared<Contents>(positions->num_chunks());
    }
};

using Files = std::vector<const DataFile*>;

std::size_t chunks_of(const Files& files) {
    std::size_t chunks = 0;
    for (const DataFile* file : files) chunks += file->contents->num_chunks();
    return chunks;
}

// The digests of all chunks of the files, one after the other, as Contents::keep gives them.
Array<std::int64_t> keep_contents(const Files& files,
                                  const std::vector<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>>& until) {
    Array<std::int64_t> all(static_cast<py::ssize_t>(chunks_of(files)));
    auto* out = reinterpret_cast<std::uint64_t*>(all.mutable_data());
    const py::gil_scoped_release release;
    std::vector<Contents::Place> places;
    for (const auto& [shard, epoch, chunk] : until) places.push_back({shard, epoch, chunk});
    for (const DataFile* file : files) {
        const std::size_t chunks = file->contents->num_chunks();
        file->contents->keep(places, {out, chunks});
        out += chunks;
    }
    return all;
}

void restore_contents(const Files& files, const Array<std::int64_t>& all) {
    if (static_cast<std::size_t>(all.size()) != chunks_of(files)) {
        throw FormatError("loader state: digests of " + std::to_string(all.size()) + " chunks, expected " +
                          std::to_string(chunks_of(files)));
    }
    const std::int64_t* in = all.data();
    for (const DataFile* file : files) {
        const std::size_t chunks = file->contents->num_chunks();
        std::vector<std::uint64_t> digests(in, in + chunks);
        if (std::ranges::all_of(digests, [](std::uint64_t digest) { return digest == Contents::kUnknown; })) {
            digests.clear();
        }
        file->contents->restore(digests);
        in += chunks;
    }
}

Sketch sketch_of(const py::bytes& bytes) {
    const auto view = static_cast<std::string_view>(bytes);
    Sketch sketch;
    if (view.size() != sketch.registers().size()) {
        throw FormatError("a sketch of unique positions of " + std::to_string(view.size()) + " bytes, expected " +
                          std::to_string(sketch.registers().size()));
    }
    std::memcpy(sketch.registers().data(), view.data(), view.size());
    return sketch;
}

// --- the pipeline ----------------------------------------------------------------------------------------------------

// A pipeline with the Python objects that its threads use. A thread that waits for a batch shares ownership, so that
// another one may close the loader meanwhile.
struct Running {
    py::list memory;         // arrays that the slots point into
    py::object user_filter;  // may be None
    std::unique_ptr<Pipeline> pipeline;
    std::int64_t process = nnue::system::process_id();
    int waiting = 0;  // threads inside next()

    Running() = default;
    ~Running();
    bool has_user_filter() const { return user_filter && !user_filter.is_none(); }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;
};

struct Registry {
    std::map<const Running*, std::weak_ptr<Running>> all;
    // Stopped pipelines whose last owner could not wait for their threads.
    std::vector<std::shared_ptr<Running>> orphans;
    bool exiting = false;
};

constexpr auto kPatience = 5s;  // with filters at the end of Python, as nnue_trainer/base/foreign.py has

constexpr const char* kEnding = "the interpreter is ending: no loader can be used any more";

// Never destroyed: it is used as long as there is a thread.
Registry& registry() {
    static auto* const registry = new Registry;
    return *registry;
}

// Frees the orphans whose threads have ended.
void free_orphans() {
    std::vector<std::shared_ptr<Running>> ended;  // freed outside of the list: that may run code of Python
    std::erase_if(registry().orphans, [&](const auto& orphan) {
        const bool is_ended = !orphan->pipeline->runs_in_worker() && orphan->pipeline->ends_within(0ms);
        if (is_ended) ended.push_back(orphan);
        return is_ended;
    });
}

std::shared_ptr<Running> make_running() {
    auto running = std::make_shared<Running>();
    registry().all.emplace(running.get(), running);
    return running;
}

Running::~Running() {
    registry().all.erase(this);
    if (!pipeline) return;
    if (process != nnue::system::process_id()) {
        // A child of fork() has none of the threads, and locks that will never be released: leave all as it is.
        static_cast<void>(pipeline.release());
        static_cast<void>(memory.release());
        static_cast<void>(user_filter.release());
    } else if (pipeline->runs_in_worker() || (has_user_filter() && !pipeline->ends_within(0ms))) {
        // A worker cannot join itself, and a user's filter may never return. close() waits for it, this does not.
        pipeline->stop();
        const auto orphan = make_running();
        orphan->memory = std::move(memory);
        orphan->user_filter = std::move(user_filter);
        orphan->pipeline = std::move(pipeline);
        registry().orphans.push_back(orphan);
    } else {
        const py::gil_scoped_release release;
        pipeline.reset();
    }
}

// Ends the threads of all pipelines, and waits until no thread of Python is inside of one. A user's filter that does
// not return is left behind: Python then ends with its thread inside, as with a daemon thread (see staying()).
void end_all_pipelines() {
    registry().exiting = true;
    // Never freed: a daemon thread that dropped the last reference later would run code of Python and torch that frees
    // arrays.
    auto& all = *new std::vector<std::shared_ptr<Running>>;
    for (const auto& [address, weak] : registry().all) {
        if (auto running = weak.lock();
            running && running->pipeline && running->process == nnue::system::process_id()) {
            all.push_back(std::move(running));
        }
    }
    for (const auto& running : all) running->pipeline->stop();
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    bool hangs = false;
    for (const auto& running : all) {
        const py::gil_scoped_release release;
        if (!running->has_user_filter()) {
            running->pipeline->join();
        } else if (const auto left = deadline - std::chrono::steady_clock::now();
                   !running->pipeline->ends_within(std::chrono::ceil<std::chrono::milliseconds>(left))) {
            hangs = true;
        }
    }
    if (hangs) PySys_WriteStderr("nnue: warning: a filter of a loader does not return; ending without it\n");
    // A daemon thread that waited for a batch needs the interpreter's lock once more to leave. Given back to it later,
    // when the interpreter is being taken down, the lock would end the process instead.
    for (int i = 0; i < 2000 && std::ranges::any_of(all, [](const auto& r) { return r->waiting > 0; }); ++i) {
        const py::gil_scoped_release release;
        std::this_thread::sleep_for(1ms);
    }
    free_orphans();
}

// Keeps the records where mask [n] is true, in place; returns how many.
std::size_t keep(std::span<Record> records, const py::object& mask_object) {
    const auto mask = py::array_t<bool, py::array::c_style>::ensure(mask_object);
    if (!mask || mask.ndim() != 1 || static_cast<std::size_t>(mask.shape(0)) != records.size()) {
        throw FormatError("user filter: expected a bool array of " + std::to_string(records.size()) + " elements");
    }
    std::size_t kept = 0;
    for (std::size_t i = 0; i < records.size(); ++i) {
        if (mask.data()[i]) records[kept++] = records[i];
    }
    return kept;
}

// Calls `f`, which enters the interpreter and has no objects of its own. Where Python is ending it ends such a thread
// by force. The destructors of the caller's objects, which would need the interpreter, must not run then: the thread
// stays here until the process ends, as it does from Python 3.14 on.
template <typename F>
auto staying(const F& f) {
#ifdef __GLIBCXX__
    try {
        return f();
    } catch (const abi::__forced_unwind&) {
        while (true) std::this_thread::sleep_for(1h);
    }
#else
    return f();
#endif
}

// Calls a filter of the user's own, which must outlive what is returned, in Python.
auto call_in_python(const py::object& filter) {
    return [filter = py::handle(filter)](std::span<Record> records) {
        std::optional<py::gil_scoped_acquire> acquire;
        staying([&] { acquire.emplace(); });
        const Array<std::uint8_t> copy({records.size(), sizeof(Record)},
                                       reinterpret_cast<const std::uint8_t*>(records.data()));
        try {
            PyObject* mask = staying([&] { return PyObject_CallOneArg(filter.ptr(), copy.ptr()); });
            if (!mask) throw py::error_already_set();
            return keep(records, py::reinterpret_steal<py::object>(mask));
        } catch (const py::error_already_set& error) {
            // Its own words, without the traceback that what() has. A UserError is one line for the user already.
            const std::string kind = py::str(error.type().attr("__name__"));
            throw FormatError("user filter: " + (kind == "UserError" ? std::string() : kind + ": ") +
                              std::string(py::str(error.value())));
        }
    };
}

// The last: the state of piece_counts, or nothing.
using PlaceTuple = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::vector<double>>;

class PipelineHandle {
  public:
    PipelineHandle(PipelineOptions o, const std::vector<const DataFile*>& files, const py::list& memory,
                   const std::vector<PlaceTuple>& start, const py::object& user_filter)
        : running_(make_running()) {
        free_orphans();
        if (registry().exiting) throw FormatError(kEnding);
        for (const DataFile* file : files) {
            if (!file) throw FormatError("loader: a file is None");
            o.files.push_back(file->positions);
            o.contents.push_back(file->contents);
        }
        running_->user_filter = user_filter;
        if (!user_filter.is_none()) o.user_filter = call_in_python(user_filter);
        features_ = o.features;
        local_batch_ = o.batch_size / std::max<std::size_t>(o.world_size, 1);
        std::vector<Slot> slots;
        for (const py::handle item : memory) {
            slots.push_back(slot_of(py::reinterpret_borrow<py::object>(item)));
            running_->memory.append(item);
        }
        std::vector<StreamPosition> places;
        for (const auto& [epoch, chunk, skip, batch, numbers] : start) {
            std::shared_ptr<const PieceCountState> state;
            if (!numbers.empty()) state = std::make_shared<const PieceCountState>(numbers);
            places.push_back({epoch, chunk, skip, batch, std::move(state)});
        }
        const py::gil_scoped_release release;
        running_->pipeline = std::make_unique<Pipeline>(std::move(o), std::move(slots), places);
    }

    // (slot, size, places after it, bad chunks so far, what was read for it); slot −1 marks the end of an epoch.
    // `poll` is called about every tenth of a second, unless it is None; what it raises ends the wait.
    py::tuple next(const py::object& poll) {
        const std::shared_ptr<Running> running = share();
        std::optional<Output> output;
        while (!output) {
            ++running->waiting;
            try {
                const py::gil_scoped_release release;
                output = running->pipeline->next(std::chrono::milliseconds(100));
            } catch (const Stopped&) {
                --running->waiting;
                throw FormatError("the loader was closed while a batch was waited for");
            } catch (...) {
                --running->waiting;
                throw;
            }
            --running->waiting;
            if (output) break;
            check_signals();
            if (!poll.is_none()) poll();
        }
        std::vector<PlaceTuple> places;
        for (const StreamPosition& p : output->after) {
            places.emplace_back(p.epoch, p.chunk, p.skip, p.batch,
                                p.piece_counts ? p.piece_counts->numbers() : std::vector<double>());
        }
        std::vector<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>> read;
        for (const Contents::Place& p : output->read) read.emplace_back(p.shard, p.epoch, p.chunk);
        const int slot = output->end_of_epoch ? -1 : static_cast<int>(output->slot);
        return py::make_tuple(slot, output->size, places, output->bad_chunks, read);
    }

    // The sketch of the positions handed out so far.
    py::bytes seen() {
        const Sketch sketch = share()->pipeline->seen();
        return {reinterpret_cast<const char*>(sketch.registers().data()), sketch.registers().size()};
    }
    void restore_seen(const py::bytes& bytes) { share()->pipeline->restore_seen(sketch_of(bytes)); }

    // Gives a slot back; with `memory`, which the next batch then goes into, its own stays with the caller.
    void release(std::size_t slot, const py::object& memory) {
        const std::shared_ptr<Running> running = share();
        if (memory.is_none()) {
            running->pipeline->release(slot);
        } else {
            const Slot next = slot_of(memory);
            running->pipeline->release(slot, &next);
            running->memory[slot] = memory;
        }
    }

    void close() {
        const std::shared_ptr<Running> running = std::exchange(running_, nullptr);
        if (!running || running->process != nnue::system::process_id() || !running->pipeline) return;
        running->pipeline->stop();
        if (running->pipeline->runs_in_worker()) return;
        const py::gil_scoped_release release;
        running->pipeline->join();
    }

    FilterCounts filter_counts() const { return share()->pipeline->filter_counts(); }

    py::tuple bad_chunks() const {
        const BadChunks bad = share()->pipeline->bad_chunks();
        return py::make_tuple(bad.count, text_of(bad.first));
    }

    std::size_t num_chunks() const { return share()->pipeline->num_chunks(); }

  private:
    std::shared_ptr<Running> share() const {
        // A daemon thread that arrives now must not release the interpreter's lock here: see end_all_pipelines().
        if (registry().exiting) throw FormatError(kEnding);
        if (!running_) throw FormatError("the loader is closed");
        if (running_->process != nnue::system::process_id()) {
            throw FormatError("the loader was opened in another process, before a fork: open one in each process");
        }
        return running_;
    }

    Slot slot_of(const py::object& memory) const { return slot_in_array(memory, features_, local_batch_); }

    std::shared_ptr<Running> running_;
    const FeatureSet* features_ = nullptr;
    std::size_t local_batch_ = 0;
};

void bind_files(py::module_& m) {
    using Unlocked = py::call_guard<py::gil_scoped_release>;
    py::class_<InputFile>(m, "InputFile")
        .def(py::init([](const std::string& path, int fd) {
                 const py::gil_scoped_release release;
                 return fd < 0 ? InputFile(path) : InputFile(path, fd);
             }),
             py::arg("path"), py::arg("fd") = -1)
        .def_property_readonly("size", &InputFile::size)
        .def("status",
             [](const InputFile& file) {
                 const auto status = [&] {
                     const py::gil_scoped_release release;
                     return file.status();
                 }();
                 return py::make_tuple(status.size, status.modified, status.device, status.number);
             })
        .def(
            "read",
            [](const InputFile& file, std::uint64_t offset, std::uint64_t size) {
                std::string bytes(std::min(size, file.size() - std::min(file.size(), offset)), '\0');
                {
                    const py::gil_scoped_release release;
                    file.read(offset, {reinterpret_cast<std::uint8_t*>(bytes.data()), bytes.size()});
                }
                return py::bytes(bytes);
            },
            py::arg("offset"), py::arg("size"))
        .def("digest_ends", &digest_ends, Unlocked())
        .def("digest_samples",
             [](const InputFile& file) {
                 const auto digests = [&] {
                     const py::gil_scoped_release release;
                     return digest_samples(file);
                 }();
                 return py::make_tuple(digests.ends, digests.all);
             })
        .def("duplicate", [](const InputFile& file) { return file.duplicate().release(); });
    m.def("set_most_open_files", &set_most_open_files, py::arg("files"));
    m.def("open_input_files", &open_input_files);

    py::class_<DataFile>(m, "DataFile")
        .def(py::init<const InputFile&, bool, const std::optional<py::function>&, const ReadSettings&,
                      const ScoreChanges&, const std::optional<std::pair<std::string, std::string>>&>(),
             py::arg("file"), py::arg("skip_bad"), py::arg("poll") = py::none(), py::arg("settings") = ReadSettings{},
             py::arg("changes") = ScoreChanges{}, py::arg("layout") = py::none())
        .def_property_readonly("file", [](const DataFile& f) { return f.positions->file(); })
        // (format, layout), for another DataFile of the same bytes.
        .def_property_readonly("layout",
                               [](const DataFile& f) {
                                   const std::vector<std::uint8_t> bytes = f.positions->layout();
                                   return py::make_tuple(
                                       f.positions->format().name,
                                       py::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
                               })
        .def_property_readonly("format", [](const DataFile& f) { return f.positions->format().name; })
        .def_property_readonly("num_chunks", [](const DataFile& f) { return f.positions->num_chunks(); })
        .def_property_readonly("size", [](const DataFile& f) { return f.positions->file().size(); })
        .def_property_readonly("torn_end", [](const DataFile& f) { return text_of(f.positions->torn_end()); })
        .def_property_readonly("header", [](const DataFile& f) { return py::bytes(f.positions->header()); })
        .def("read_chunk",
             [](const DataFile& f, std::size_t chunk) {
                 if (chunk >= f.positions->num_chunks()) throw FormatError("no chunk " + std::to_string(chunk));
                 std::vector<std::uint8_t> bytes;
                 {
                     const py::gil_scoped_release release;
                     f.positions->read_chunk(chunk, bytes);
                 }
                 return py::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
             })
        .def("decode", [](const DataFile& f, std::size_t chunk) {
            if (chunk >= f.positions->num_chunks()) throw FormatError("no chunk " + std::to_string(chunk));
            std::vector<std::uint8_t> bytes;
            RecordBuffer buffer;
            {
                const py::gil_scoped_release release;
                f.positions->decode(chunk, bytes, buffer);
            }
            auto records = make_records(buffer.size());
            if (buffer.size()) std::memcpy(records.mutable_data(), buffer.data(), buffer.size() * sizeof(Record));
            return records;
        });
    m.def("keep_contents", &keep_contents, py::arg("files"), py::arg("until"));
    m.def("restore_contents", &restore_contents, py::arg("files"), py::arg("digests"));
}

}  // namespace

void bind_pipeline(py::module_& m) {
    bind_files(m);

    m.def("slots_for", &slots_for, py::arg("threads"), py::arg("held"));
    // The sketch of two streams together.
    m.def(
        "join_sketches",
        [](const py::bytes& first, const py::bytes& second) {
            Sketch sketch = sketch_of(first);
            sketch.join(sketch_of(second));
            return py::bytes(reinterpret_cast<const char*>(sketch.registers().data()), sketch.registers().size());
        },
        py::arg("first"), py::arg("second"));

    // Without files and the user's filter, which are arguments of Pipeline.
    bind_struct<PipelineOptions>(m, "PipelineOptions")
        .def_property(
            "features",
            [](const PipelineOptions& o) {
                return o.features ? std::optional<std::string>(o.features->name) : std::nullopt;
            },
            [](PipelineOptions& o, const std::optional<std::string>& name) {
                o.features = name ? &feature_set(*name) : nullptr;
            })
        .def_readwrite("batch_size", &PipelineOptions::batch_size)
        .def_readwrite("seed", &PipelineOptions::seed)
        .def_readwrite("shuffle", &PipelineOptions::shuffle)
        .def_readwrite("window", &PipelineOptions::window)
        .def_readwrite("drop_last", &PipelineOptions::drop_last)
        .def_readwrite("threads", &PipelineOptions::threads)
        .def_readwrite("weights", &PipelineOptions::weights)
        .def_readwrite("skip_bad_chunks", &PipelineOptions::skip_bad_chunks)
        .def_readwrite("filters", &PipelineOptions::filters)
        .def_readwrite("rank", &PipelineOptions::rank)
        .def_readwrite("world_size", &PipelineOptions::world_size)
        .def_readwrite("counts_unique", &PipelineOptions::counts_unique)
        .def_readwrite("shards", &PipelineOptions::shards);

    py::class_<PipelineHandle>(m, "Pipeline")
        .def(py::init<PipelineOptions, const std::vector<const DataFile*>&, const py::list&,
                      const std::vector<PlaceTuple>&, const py::object&>(),
             py::arg("options"), py::arg("files"), py::arg("memory"), py::arg("start"),
             py::arg("user_filter") = py::none())
        .def("next", &PipelineHandle::next, py::arg("poll") = py::none())
        .def("release", &PipelineHandle::release, py::arg("slot"), py::arg("memory") = py::none())
        .def("close", &PipelineHandle::close)
        .def("filter_counts", &PipelineHandle::filter_counts)
        .def("seen", &PipelineHandle::seen)
        .def("restore_seen", &PipelineHandle::restore_seen, py::arg("sketch"))
        .def("bad_chunks", &PipelineHandle::bad_chunks)
        .def_property_readonly("num_chunks", &PipelineHandle::num_chunks);

    py::module_::import("atexit").attr("register")(py::cpp_function(&end_all_pipelines));
}
