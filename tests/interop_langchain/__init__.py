"""memctl in the environment of an application with LangChain's vector stores: ``make interop``."""
