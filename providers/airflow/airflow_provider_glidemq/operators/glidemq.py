"""The operators, under one name."""

from __future__ import annotations

from airflow_provider_glidemq.identity import flow_id_for
from airflow_provider_glidemq.operators.flow import GlideMQFlowOperator
from airflow_provider_glidemq.operators.job import GlideMQOperator
from airflow_provider_glidemq.operators.lifecycle import XCOM_FLOW_ID
from airflow_provider_glidemq.operators.spark import GlideMQSparkOperator

__all__ = ["XCOM_FLOW_ID", "GlideMQFlowOperator", "GlideMQOperator", "GlideMQSparkOperator", "flow_id_for"]
