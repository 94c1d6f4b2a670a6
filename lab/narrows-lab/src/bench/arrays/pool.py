"""Writes the arrays of the corpus as .npy files: pool.py CORPUS FOLDER."""

import os
import sys

import numpy as np

RAW = {
    "CanESM2_pr_stations.f32": (55115, 3),
    "CanESM2_tasmax_day_0-180.f32": (180, 36, 36),
    "cmip5_CanESM2_tas.f32": (12, 64, 128),
    "cmip6_CESM2-FV2_lat.f64": (384, 320),
    "cmip6_CESM2-FV2_tos.f32": (1, 384, 320),
    "eraint_u.f32": (3, 241, 480),
    "indicators_meantemp_0-15.f32": (15, 56, 116),
}
# What stands before the packed numbers of the file.
ERAINT_HEADER = 8192


def main():
    corpus, folder = sys.argv[1:3]

    def path(*parts):
        return os.path.join(corpus, *parts)

    def save(name, array):
        np.save(os.path.join(folder, name + ".npy"), np.ascontiguousarray(array))

    for name, shape in RAW.items():
        dtype = "<f8" if name.endswith("f64") else "<f4"
        save(name.split(".")[0], np.fromfile(path("climate", "raw", name), dtype).reshape(shape))
    try:
        from netCDF4 import Dataset
    except ImportError:
        print("netCDF4 is missing: zos is left out", file=sys.stderr)
    else:
        with Dataset(path("climate", "zos_Omon_bcc-csm1-1_rcp85_r1i1p1_200601.nc")) as data:
            data.set_auto_maskandscale(False)
            for name in "zos", "lat", "lon":
                save(f"zos_{name}", data[name][:])
    packed = np.fromfile(path("climate", "eraint_uvz.0-1MiB.nc"), ">i2", offset=ERAINT_HEADER)
    save("eraint_packed", packed.astype("<i2"))
    records = np.fromfile(path("sensor", "ETTh1.rec32"), np.uint8)
    save("etth1_rec32", records)
    columns = np.ascontiguousarray(records.reshape(-1, 32)[:, 4:]).view("<f4")
    save("etth1", columns)
    save("etth1_t", columns.T)
    save("wfdb_monitor", np.fromfile(path("sensor", "wfdb-3234460_0016.dat"), "<i2"))
    save("mri", np.fromfile(path("sensor", "silesia-mr.2-2.5MiB"), "<i2"))
    save("wfdb_ecg", np.fromfile(path("sensor", "wfdb-100.dat"), np.uint8))


main()
