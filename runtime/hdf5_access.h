// Inside of Hdf5File: identifiers that close themselves, and calls that throw. Included by its two source files only.
#pragma once

#include <hdf5.h>

#include <mutex>
#include <string>
#include <utility>

#include "runtime/hdf5_file.h"

namespace baton {

/// HDF5 as packaged may not be thread-safe, and in-process ranks are threads. Where it is, each thread has an error
/// stack.
inline std::unique_lock<std::recursive_mutex> lock_library() {
  static std::recursive_mutex mutex;
  std::unique_lock lock(mutex);
  static thread_local const bool silenced = H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr) >= 0;
  CHECK(silenced, "HDF5 cannot be initialised");
  return lock;
}

/// The innermost description on HDF5's error stack: the cause, where the outer ones only say who called.
inline std::string library_error() {
  std::string text;
  auto take_first = [](unsigned, const H5E_error2_t* error, void* data) -> herr_t {
    auto& out = *static_cast<std::string*>(data);
    if (out.empty() && error->desc != nullptr) out = error->desc;
    return 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, take_first, &text);
  H5Eclear2(H5E_DEFAULT);
  return text.empty() ? "HDF5 gives no reason" : text;
}

/// Closes an identifier of any kind but a file.
class Handle {
 public:
  explicit Handle(hid_t id = -1) : id_(id) {}
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, -1)) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(id_, other.id_);
    return *this;
  }
  ~Handle() {
    if (id_ >= 0) H5Idec_ref(id_);
  }
  operator hid_t() const { return id_; }  // NOLINT(google-explicit-constructor)

 private:
  hid_t id_;
};

/// Throws where an HDF5 call returned a negative value. `verb` is what was tried, on `name`.
template <class T>
T checked(T result, const std::string& path, ExitCode code, const char* verb, const std::string& name) {
  CHECK_CODE(code, result >= 0, "{}: cannot {} {}: {}", path, verb, name, library_error());
  return result;
}

inline Handle link_properties() {
  Handle properties(H5Pcreate(H5P_LINK_CREATE));
  const bool good =
      H5Pset_create_intermediate_group(properties, 1) >= 0 && H5Pset_char_encoding(properties, H5T_CSET_UTF8) >= 0;
  CHECK(good, "HDF5 cannot prepare a link: {}", library_error());
  return properties;
}

inline std::string with_slash(const std::string& name) { return name.starts_with('/') ? name : "/" + name; }

/// Calls on one file, under the library's lock.
struct Hdf5File::Access {
  const Hdf5File& file;
  std::unique_lock<std::recursive_mutex> lock = lock_library();
  ExitCode code = file.mode_ == Mode::kRead ? ExitCode::kInput : ExitCode::kTransport;

  template <class T>
  T operator()(T result, const char* verb, const std::string& name) const {
    return checked(result, file.path_, code, verb, name);
  }

  Handle dataset(const std::string& name) const {
    CHECK_CODE(code, file.exists(name) && !file.is_group(name), "{} has no dataset {}", file.path_, with_slash(name));
    return Handle((*this)(H5Dopen2(file.file_, name.c_str(), H5P_DEFAULT), "open dataset", name));
  }

  Handle attribute(const std::string& object, const std::string& name) const {
    CHECK_CODE(code, file.has_attribute(object, name), "{} has no attribute {} at {}", file.path_, name,
               with_slash(object));
    return Handle((*this)(H5Aopen_by_name(file.file_, object.c_str(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT),
                          "open attribute", name));
  }

  /// Number of elements of an attribute, whose class must be one of two.
  int64_t check_attribute(const Handle& attribute, const std::string& name, H5T_class_t first, H5T_class_t second,
                          const char* what) const {
    const Handle type((*this)(H5Aget_type(attribute), "read attribute", name));
    const H5T_class_t found = H5Tget_class(type);
    CHECK_CODE(code, found == first || found == second, "{}: attribute {} must be {}", file.path_, name, what);
    const Handle space((*this)(H5Aget_space(attribute), "read attribute", name));
    return (*this)(H5Sget_simple_extent_npoints(space), "read attribute", name);
  }

  template <class T>
  T read_one(const std::string& object, const std::string& name, hid_t memory_type, H5T_class_t other,
             const char* what) const {
    const Handle attribute = this->attribute(object, name);
    const int64_t count = check_attribute(attribute, name, H5T_INTEGER, other, what);
    CHECK_CODE(code, count == 1, "{}: attribute {} must be one value, not {}", file.path_, name, count);
    T value{};
    (*this)(H5Aread(attribute, memory_type, &value), "read attribute", name);
    return value;
  }

  void write_attribute(const std::string& object, const std::string& name, hid_t type, const void* value) const {
    if (!file.exists(object)) {
      const Handle group((*this)(H5Gcreate2(file.file_, object.c_str(), link_properties(), H5P_DEFAULT, H5P_DEFAULT),
                                 "create group", object));
    }
    const Handle space(H5Screate(H5S_SCALAR));
    const Handle attribute((*this)(
        H5Acreate_by_name(file.file_, object.c_str(), name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
        "create attribute", name));
    (*this)(H5Awrite(attribute, type, value), "write attribute", name);
  }
};

}  // namespace baton
