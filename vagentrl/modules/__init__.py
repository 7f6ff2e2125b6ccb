"""The models as LightningModules, under one root: `AgentModule`."""
