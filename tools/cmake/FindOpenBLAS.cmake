# Finds OpenBLAS in its OpenMP build: target OpenBLAS::OpenBLAS with cblas.h. Debian keeps its flavours side by side.
set(openblas_hints /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-openmp)
set(openblas_include_hints /usr/include/${CMAKE_LIBRARY_ARCHITECTURE}/openblas-openmp)
find_library(OpenBLAS_LIBRARY NAMES openblas HINTS ${openblas_hints})
find_path(OpenBLAS_INCLUDE_DIR NAMES cblas.h HINTS ${openblas_include_hints} PATH_SUFFIXES openblas)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OpenBLAS REQUIRED_VARS OpenBLAS_LIBRARY OpenBLAS_INCLUDE_DIR)
if(OpenBLAS_FOUND AND NOT TARGET OpenBLAS::OpenBLAS)
  add_library(OpenBLAS::OpenBLAS UNKNOWN IMPORTED)
  set_target_properties(OpenBLAS::OpenBLAS PROPERTIES
    IMPORTED_LOCATION ${OpenBLAS_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${OpenBLAS_INCLUDE_DIR})
endif()
