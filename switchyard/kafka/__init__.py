"""Talking to Kafka outside of Spark. The only folder that imports confluent_kafka.

It may import the foundation only. Start with `control_topic.py` and `topics.py`.
"""
