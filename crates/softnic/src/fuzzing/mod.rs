//! Bodies of the fuzz targets, which the tests run on random bytes too.
