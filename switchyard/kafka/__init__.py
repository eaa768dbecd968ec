"""Talking to Kafka outside of Spark. The only package that imports confluent_kafka."""
