// The end of all sources for the CPU, which have `one`.
namespace {
template <class T>
const char* all(const Job& job, int64_t begin, int64_t end) {
    try {
        for (int64_t i = begin; i < end; ++i) one<T>(job, i);
        return nullptr;
    } catch (const std::exception& error) {
        static thread_local char text[256];
        std::snprintf(text, sizeof text, "%s", error.what());
        return text;
    } catch (...) {
        return "an exception of another type than std::exception";
    }
}
}  // namespace
#define EXPORT extern "C" __attribute__((visibility("default")))
// Null, or the error: no exception may leave a function that C calls.
EXPORT const char* apply_float(const Job* job, int64_t begin, int64_t end) {
    return all<float>(*job, begin, end);
}
EXPORT const char* apply_double(const Job* job, int64_t begin, int64_t end) {
    return all<double>(*job, begin, end);
}
