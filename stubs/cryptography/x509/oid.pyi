class ObjectIdentifier: ...

class NameOID:
    COMMON_NAME: ObjectIdentifier
