# Copy to var/spack/repos/.../packages/copyrpc/package.py of a repository of your own.
from spack.package import *


class Copyrpc(CargoPackage):
    """RPC for RDMA clusters: many processes, one daemon per node, few queue pairs."""

    license("MIT OR Apache-2.0", checked_by="upstream")

    version("main", branch="main")

    variant("lab", default=False, description="Build copyrpc-lab: benchmarks, simulations, verbs on the software NIC")
    variant("capi", default=True, description="Build libcopyrpc_c and its header for C")

    depends_on("rust@1.89:", type="build")

    @property
    def build_args(self):
        args = ["--profile", "dist", "--locked", "-p", "copyrpc-cli"]
        if self.spec.satisfies("+lab"):
            args += ["-p", "copyrpc-lab", "-p", "copyrpc-preload"]
        if self.spec.satisfies("+capi"):
            args += ["-p", "copyrpc-capi"]
        return args

    def install(self, spec, prefix):
        out = join_path(self.build_directory, "target", "dist")
        mkdirp(prefix.bin, prefix.lib, prefix.share.man.man1, prefix.share.doc.copyrpc)
        install(join_path(out, "copyrpc"), prefix.bin)
        if spec.satisfies("+lab"):
            install(join_path(out, "copyrpc-lab"), prefix.bin)
            install(join_path(out, "libcopyrpc_preload.so"), prefix.lib)
        copyrpc = Executable(prefix.bin.copyrpc)
        copyrpc("generate", "man", prefix.share.man.man1)
        completions = prefix.share.join("bash-completion").completions
        mkdirp(completions)
        copyrpc("generate", "completions", completions)
        install("docs/copyrpc@.service", prefix.share.doc.copyrpc)
        if spec.satisfies("+capi"):
            install_c = Executable("packaging/install-c.sh")
            install_c(extra_env={"PREFIX": prefix, "LIBDIR": "lib", "BUILT": out})
