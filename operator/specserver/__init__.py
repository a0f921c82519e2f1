"""SpecServer: language-model servers that speculate when it pays, and only then."""

__version__ = "0.1.0"
