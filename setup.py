"""Leave out the compiled kernels if ANTIPHON_BUILD_KERNELS is `off`; pyproject.toml has everything else."""

import os

from setuptools import Distribution, setup


class PureDistribution(Distribution):
    """A distribution without extension modules: its wheel fits every platform."""

    def has_ext_modules(self) -> bool:
        """Return False, whatever pyproject.toml lists."""
        return False


is_pure = os.environ.get("ANTIPHON_BUILD_KERNELS") == "off"
setup(distclass=PureDistribution if is_pure else Distribution)
